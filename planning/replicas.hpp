// Who writes what several ranks hold. Internal to planning.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/planning/box.hpp>
#include <cairn/planning/global_plan.hpp>

namespace cairn {

// What an item costs beside its payload (archive, padding, table entry): keeps thousands of scalars from piling up on one rank.
inline constexpr std::uint64_t kItemOverheadBytes = 1024;

// One chunk or value that several ranks hold.
struct Replica {
  std::uint32_t id = 0;  // the caller's; also the order in which equally large ones are placed
  std::uint64_t bytes = 0;
  const Box* chunk = nullptr;            // nullptr: cannot be split
  const std::uint32_t* ranks = nullptr;  // who holds it, ascending
  std::uint32_t count = 0;
  bool lowest_only = false;  // the lowest holder writes it, whatever the balance says
};

// One holder's part.
struct HolderShare {
  std::uint32_t holder = 0;  // index into Replica::ranks
  Box part;                  // meaningful if the replica was split
};

// Where one replica went: placements[begin, end), by rank.
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

// Places every replica. `load_bytes[rank]` is what the rank writes anyway, and what it writes in all afterwards. Largest first,
// each to the holder with the fewest bytes; of a large one every holder that is not ahead already takes as many rows as bring them
// level.
Assignment assign_replicas(std::vector<Replica> replicas, std::vector<std::uint64_t>& load_bytes, const GlobalPlanOptions& options);

}  // namespace cairn
