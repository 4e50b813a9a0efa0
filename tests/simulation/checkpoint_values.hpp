// The state that simulated ranks save. It is small, and every value in it tells which save it
// belongs to.
#pragma once

#include <cstdint>

#include <cairn/state/state_dict.hpp>

namespace cairn::simulation {

// The content of one save. `content` changes every value; another `layout` has other tensors, and
// so other plans.
struct Version {
  std::uint64_t content = 0;
  int layout = 0;
};

// Returns the part of `rank`: a sharded tensor, a replicated tensor, a number, and a text whose
// length changes from save to save.
StateDict state_of(const Version& version, int rank, int world_size);
// Returns how many items all ranks together write or read at most: a rank that loads what another
// number of ranks saved reads its rows in several pieces.
std::uint64_t items_max(int world_size);
// Returns the same state with empty values, to load into. It requests every entry of a checkpoint
// with this `layout`.
StateDict empty_state(int layout, int rank, int world_size);
// Returns whether the loaded `state` is exactly that part.
bool holds(const StateDict& state, const Version& version, int rank, int world_size);

}  // namespace cairn::simulation
