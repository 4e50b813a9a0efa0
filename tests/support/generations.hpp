// States of one shape, each marked with its generation, and a check of the generation that a
// checkpoint holds. Include a test framework header first.
#pragma once

#include <memory>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/watched_storage.hpp>

namespace cairn::testing {

inline StateDict state_of(int generation, const World& world) {
  return {
      {"generation", generation},
      {"sharded", ShardedTensor::distribute(counting({20, 20}, 1000.0 * generation), over_all_ranks(world.size()), world.rank())},
      {"replicated", counting({10, 10}, 1000.0 * generation)}};
}

inline int loaded_generation(Checkpointer& checkpointer, const std::string& id) {
  StateDict state = state_of(0, checkpointer.world());
  checkpointer.load(state, id);
  const int generation = static_cast<int>(state.at("generation").to_int());
  const StateDict expected = state_of(generation, checkpointer.world());
  CHECK(torch::equal(state.at("replicated").tensor(), expected.at("replicated").tensor()));
  CHECK(torch::equal(state.at("sharded").sharded().local_shards().front().tensor,
                     expected.at("sharded").sharded().local_shards().front().tensor));
  return generation;
}

// Returns options with Cairn's own writer, which waits at the gate before `hook`.
inline SaveOptions gated(const std::string& hook, const std::shared_ptr<Gate>& gate) {
  SaveOptions options;
  options.storage_writer = std::make_shared<WatchedWriter>([hook, gate](const std::string& reached) {
    if (reached == hook) gate->pass();
  });
  return options;
}

}  // namespace cairn::testing
