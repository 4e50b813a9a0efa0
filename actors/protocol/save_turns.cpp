#include <cairn/actors/protocol/save_turns.hpp>

namespace cairn::protocol {

bool SaveTurns::has_come(std::uint64_t number) const { return in_flight_.begin()->first == number; }

bool SaveTurns::was_taken(std::uint64_t number) const { return in_flight_.at(number).taken; }

SaveTurn SaveTurns::take(std::uint64_t number) {
  Save& save = in_flight_.at(number);
  if (save.dropped) return SaveTurn::kDropped;
  if (save.held || !has_come(number)) return SaveTurn::kWaits;
  save.taken = true;
  return SaveTurn::kTaken;
}

bool SaveTurns::hold(std::uint64_t number) {
  if (!is_in_flight(number) || has_come(number)) return false;
  in_flight_.at(number).held = true;
  return true;
}

void SaveTurns::drop(std::uint64_t number) {
  const auto found = in_flight_.find(number);
  if (found != in_flight_.end() && !found->second.taken) found->second.dropped = true;
}

}  // namespace cairn::protocol
