// As many ranks as one process can hold, each with its own actors, connections and thread.
#include <cairn/tests/support/skipped.hpp>
#include <cairn/tests/support/torch.hpp>
//
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cairn/base/error.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/worlds/world.hpp>
#include <cairn/tests/support/descriptor_limit.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

TEST_CASE("300 ranks save, with a soft limit of 1,024 descriptors") {
  constexpr int kRanks = 300;
  if (const DescriptorLimit limit(20'000); !limit.enough()) {
    skip_case("this process may not open 20,000 descriptors");
    return;
  }
  const DescriptorLimit limit(1024);
  const TemporaryDirectory directory;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  WorldOptions options;
  options.actor_threads = 1;
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const World world = World::from_store(store, rank, kRanks, options);
        Checkpointer checkpointer(world);
        for (const char* step : {"/step_1", "/step_2"})
          checkpointer.save({{"rank " + std::to_string(rank), torch::full({8}, rank, torch::kLong)}}, directory.path() + step);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) CHECK(error == "");
  const World alone = World::single();
  StateDict loaded{{"rank 299", torch::zeros({8}, torch::kLong)}};
  Checkpointer(alone).load(loaded, directory.path() + "/step_2");
  CHECK(loaded.at("rank 299").tensor().equal(torch::full({8}, 299, torch::kLong)));
}

}  // namespace
}  // namespace cairn::testing
