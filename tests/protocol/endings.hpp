// Checks on how calls end in a MachineWorld.
#pragma once

#include <cairn/tests/support/failure_maps.hpp>

#include "machine_world.hpp"

namespace cairn::test {

using testing::ranks_of;

inline bool same(const CallResult& a, const CallResult& b) {
  return a.failures == b.failures && a.committed == b.committed && a.save_id == b.save_id;
}

// Checks on every live rank that `calls` calls ended, each once, and left nothing behind.
inline void check_all_ended_once(MachineWorld& world, std::size_t calls) {
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!world.is_alive(rank)) continue;
    CAPTURE(rank);
    REQUIRE(world.finished(rank).size() == calls);
    CHECK(world.rank(rank).is_idle());
    CHECK(world.coordinator(rank).is_idle());
  }
}

inline void check_all_agree(const MachineWorld& world) {
  for (int rank = 1; rank < world.size(); ++rank) CHECK(same(world.finished(rank).back(), world.finished(0).back()));
}

// Checks that a rank which says whether the checkpoint exists is right.
inline void check_knows_its_save(const MachineWorld& world, const CallResult& own) {
  if (own.committed == Committed::kYes) CHECK(world.is_published(own.save_id));
  if (own.committed == Committed::kNo) CHECK_FALSE(world.is_published(own.save_id));
}

// Checks that all live ranks that were never frozen ended the last call the same way. Returns one
// of them, -1 if there is none.
inline int check_survivors(MachineWorld& world, std::size_t calls) {
  check_all_ended_once(world, calls);
  int reference = -1;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!world.is_alive(rank)) continue;
    CAPTURE(rank);
    const CallResult& own = world.finished(rank).back();
    check_knows_its_save(world, own);
    if (world.was_frozen(rank)) continue;
    if (reference == -1) reference = rank;
    CAPTURE(describe(own.failures));
    CAPTURE(describe(world.finished(reference).back().failures));
    CHECK(same(own, world.finished(reference).back()));
  }
  return reference;
}

}  // namespace cairn::test
