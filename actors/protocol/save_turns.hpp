// In which order the saves of one checkpointer that are in flight together use its planner and writer on one rank: each when all
// earlier ones have ended there. The planner's first hook is held back until then, so the rank offers no plan before, so saves are
// published in the order of the calls. Pure, and not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace cairn::protocol {

// What becomes of a save's first hook of the planner.
enum class SaveTurn : std::uint8_t {
  kWaits,
  kTaken,
  kDropped,  // the save was cancelled before its turn: no hook of planner and writer runs any more
};

class SaveTurns {
 public:
  // A save is in flight. Numbers follow the order of the calls.
  void begin(std::uint64_t number) { in_flight_[number]; }
  // It has ended: no hook of it runs any more.
  void end(std::uint64_t number) { in_flight_.erase(number); }

  bool any() const { return !in_flight_.empty(); }
  std::size_t count() const { return in_flight_.size(); }
  bool is_in_flight(std::uint64_t number) const { return in_flight_.count(number) != 0; }
  // All earlier ones have ended. Of a save in flight, as what follows.
  bool has_come(std::uint64_t number) const;
  // Planner and writer are in use, or were.
  bool was_taken(std::uint64_t number) const;

  // Asked by the save's first hook of the planner: again after every change, while it waits.
  SaveTurn take(std::uint64_t number);
  // The turn must not come any more, for the save is to be cancelled. Returns false if it has come already, or the save has ended.
  bool hold(std::uint64_t number);
  // The save was cancelled. Changes nothing once the turn was taken, or the save has ended.
  void drop(std::uint64_t number);

 private:
  struct Save {
    bool held = false;
    bool dropped = false;
    bool taken = false;
  };
  std::map<std::uint64_t, Save> in_flight_;
};

}  // namespace cairn::protocol
