// Ranks of one launch that pass on what they read, with the job's secret.
#include <fstream>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/counted_reads.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("read once: the ranks of a launch read a replicated state once from the store that they share") {
  const std::string place = counted(shared_directory() + "/step");
  const int rank = world().rank();
  Checkpointer checkpointer(world());
  const auto whole = torch::arange(2 << 20, torch::kFloat32);
  checkpointer.save({{"w", whole}}, place);
  for (const ReadOnce mode : {ReadOnce::kHost, ReadOnce::kWorld}) {
    reads().bytes = 0;
    StateDict state{{"w", torch::zeros_like(whole)}};
    LoadOptions options;
    options.read_once = mode;
    checkpointer.load(state, place, options);
    CHECK(state.at("w").tensor().equal(whole));
    const auto path = [](int of) { return shared_directory() + "/bytes_" + std::to_string(of); };
    std::ofstream(path(rank)) << reads().bytes;
    barrier();
    std::uint64_t sum = 0, own = 0;
    for (int other = 0; other < world().size(); ++other) {
      std::ifstream(path(other)) >> own;
      sum += own;
    }
    CHECK(sum <= 1.05 * static_cast<double>(whole.nbytes()));
    CHECK(reads().bytes > 0);  // each rank reads a part
    barrier();
  }
}
