// The total progress of all ranks of an attempt. Updated incrementally, so that an answer to one
// rank does not cost O(ranks).
#pragma once

#include <array>
#include <set>
#include <utility>
#include <vector>

#include <cairn/messages/control.hpp>

namespace cairn::protocol {

class ProgressSums {
 public:
  // Starts a new attempt: no rank has reported progress or ended its phase.
  void reset(int ranks);
  // Sets the progress of `rank`, and whether it has ended the phase. O(log ranks).
  void set(int rank, const Moved& moved, bool has_ended);

  // Returns the sum of all ranks. Saturates at the largest number.
  Moved sum() const;
  int ranks_done() const { return static_cast<int>(parts_.size() - behind_.size()); }
  const Moved& of(int rank) const { return parts_[static_cast<std::size_t>(rank)].moved; }
  // Returns the rank with the smallest fraction done among those that have not ended the phase; on
  // a tie the lowest rank; -1 if there is none.
  int slowest_rank() const { return behind_.empty() ? -1 : behind_.begin()->second; }

 private:
  struct Part {
    Moved moved;
    bool has_ended = false;
  };
  __extension__ typedef unsigned __int128 Sum;  // of 64-bit numbers

  std::vector<Part> parts_;                  // by rank
  std::set<std::pair<double, int>> behind_;  // fraction done and rank, of the ranks that have not ended the phase
  std::array<Sum, 4> sums_{};                // of the four counts of Moved
};

}  // namespace cairn::protocol
