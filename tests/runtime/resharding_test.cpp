// Saves in every layout and world size, and loads in every other, in one process.
#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/stride.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("B4.3 bytes agree for every pair of world sizes and layouts in process") {
  const std::vector<int> sizes = kStride == 1 ? std::vector{1, 2, 3, 4, 8} : std::vector{1, 2, 3};
  const auto id = [](int size, const std::string& layout) {
    return "mem://resharding/world_" + std::to_string(size) + "/" + layout;
  };
  for (const int size : sizes)
    on_all_ranks(size, [&](World& world) {
      Checkpointer checkpointer(world);
      for (const auto& layout : layout_names()) checkpointer.save(state_in_layout(layout, world.rank(), size), id(size, layout));
    });
  for (const int size : sizes)
    on_all_ranks(size, [&](World& world) {
      Checkpointer checkpointer(world);
      for (const int saved : sizes)
        for (const auto& from : layout_names())
          for (const auto& to : layout_names()) {
            StateDict state = state_in_layout(to, world.rank(), size, true);
            checkpointer.load(state, id(saved, from));
            // doctest's assertions are thread-safe.
            CHECK_MESSAGE(holds_expected(state, to, world.rank(), size),
                          "saved by " << saved << " as " << from << ", loaded by " << size << " as " << to);
          }
    });
}

