// Chooses which rank writes data that several ranks hold. Internal to planning.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn {

// Cost of an item in addition to its payload (archive, padding, table entry). Keeps thousands of
// scalars from piling up on one rank.
inline constexpr std::uint64_t kItemOverheadBytes = 1024;

// One chunk or bytes object that several ranks hold.
struct Replica {
  std::uint32_t id = 0;  // the caller's id; orders replicas of equal size
  std::uint64_t bytes = 0;
  const Box* chunk = nullptr;            // nullptr: must not be split
  const std::uint32_t* ranks = nullptr;  // the holders: the ranks that hold it, ascending
  std::uint32_t count = 0;
  bool lowest_only = false;  // the lowest holder writes it, regardless of balance
};

// The part that one holder writes.
struct HolderShare {
  std::uint32_t holder = 0;  // index into Replica::ranks
  Box part;                  // meaningful only if the replica was split
};

// The placement of one replica: Assignment::placements[begin, end), ordered by rank.
struct Placed {
  std::uint32_t id = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  bool split = false;
};

struct Assignment {
  std::vector<Placed> placed;
  std::vector<HolderShare> placements;
};

// Places every replica, largest first. Each goes to the holder with the fewest bytes to write. A
// large replica is split: holders take rows so that their totals become about equal. A holder that
// already has more bytes than that takes none. On entry, `load_bytes[rank]` must be the number of
// bytes that the rank writes anyway; on return, it is the rank's total. `split_above_bytes` is
// explained in GlobalPlanOptions.
Assignment assign_replicas(std::vector<Replica> replicas, std::vector<std::uint64_t>& load_bytes, std::uint64_t split_above_bytes);

}  // namespace cairn
