// One launch saves at one world size, and another loads at another. The bytes agree for every pair
// of layouts.
#include <cstdlib>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// Returns a directory that all launches of one test run share.
std::string directory(int saved_world, const std::string& layout) {
  const char* root = std::getenv("CAIRN_TEST_RESHARDING");
  REQUIRE_MESSAGE(root != nullptr, "CAIRN_TEST_RESHARDING names the directory that the launches share");
  return std::string(root) + "/world_" + std::to_string(saved_world) + "/" + layout;
}

}  // namespace

TEST_CASE("B4.3 saving launch") {
  Checkpointer checkpointer(world());
  for (const auto& layout : layout_names())
    checkpointer.save(state_in_layout(layout, world().rank(), world().size()), directory(world().size(), layout));
}

TEST_CASE("B4.3 loading launch") {
  Checkpointer checkpointer(world());
  const int rank = world().rank();
  const int size = world().size();
  for (const int saved_world : {1, 2, 3, 4, 8})
    for (const auto& from : layout_names())
      for (const auto& to : layout_names()) {
        CAPTURE(saved_world);
        CAPTURE(from);
        CAPTURE(to);
        StateDict state = state_in_layout(to, rank, size, true);
        checkpointer.load(state, directory(saved_world, from));
        CHECK(holds_expected(state, to, rank, size));
      }
}
