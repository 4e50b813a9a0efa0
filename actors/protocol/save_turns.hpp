// The order in which concurrent saves of one checkpointer use its planner and writer on one rank.
// The first planner hook of a save waits until all earlier saves have ended on this rank, so until
// then the rank sends no plan. Saves are therefore published in the order of the calls.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace cairn::protocol {

// The state of a save's first planner hook.
enum class SaveTurn : std::uint8_t {
  kWaits,
  kTaken,
  kDropped,  // the save was cancelled before its turn: no planner or writer hook runs
};

class SaveTurns {
 public:
  // Adds a save. Numbers follow the order of the calls.
  void begin(std::uint64_t number) { in_flight_[number]; }
  // Removes a save that has ended: none of its hooks is running or will run.
  void end(std::uint64_t number) { in_flight_.erase(number); }

  bool any() const { return !in_flight_.empty(); }
  std::size_t count() const { return in_flight_.size(); }
  bool is_in_flight(std::uint64_t number) const { return in_flight_.count(number) != 0; }
  // Returns whether all earlier saves have ended. Here and in the next two functions, save `number`
  // must be in flight.
  bool has_come(std::uint64_t number) const { return in_flight_.begin()->first == number; }
  // Returns whether the save uses the planner and writer, or has used them.
  bool was_taken(std::uint64_t number) const { return in_flight_.at(number).taken; }

  // Takes the turn if it has come. The save's first planner hook calls this, and calls it again
  // after every change to this SaveTurns while the result is kWaits.
  SaveTurn take(std::uint64_t number) {
    Save& save = in_flight_.at(number);
    if (save.dropped) return SaveTurn::kDropped;
    if (save.held || !has_come(number)) return SaveTurn::kWaits;
    save.taken = true;
    return SaveTurn::kTaken;
  }
  // Prevents the save from taking its turn. Call this before cancelling the save. Returns false if
  // the turn has already come or the save has ended.
  bool hold(std::uint64_t number) {
    if (!is_in_flight(number) || has_come(number)) return false;
    return in_flight_.at(number).held = true;
  }
  // Marks the save as cancelled. Does nothing if it has taken its turn or has ended.
  void drop(std::uint64_t number) {
    const auto found = in_flight_.find(number);
    if (found != in_flight_.end() && !found->second.taken) found->second.dropped = true;
  }

 private:
  struct Save {
    bool held = false;
    bool dropped = false;
    bool taken = false;
  };
  std::map<std::uint64_t, Save> in_flight_;
};

}  // namespace cairn::protocol
