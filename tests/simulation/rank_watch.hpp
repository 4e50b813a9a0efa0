// Follows the states of the actors of one simulated rank by their trace events. The checks of a
// world know nothing else of these states.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/tests/simulation/coverage.hpp>

namespace cairn::simulation {

class RankWatch {
 public:
  using Checkpointer = std::uint32_t;  // see ObservedEvent

  explicit RankWatch(Coverage& coverage) : coverage_(coverage) {}

  // Counts the event in the coverage and takes it in. Returns the state that a coordinator has
  // entered by it, if any.
  std::optional<protocol::CoordinatorMachine::State> take(const ObservedEvent& event);

  RankState state_of_rank(Checkpointer checkpointer) const;
  const std::map<Checkpointer, RankState>& ranks() const { return ranks_; }
  const std::map<Checkpointer, CoordinatorState>& coordinators() const { return coordinators_; }
  // Returns the state of a machine that is not idle, or "".
  std::string busy_state() const;
  // The coordinator actor is about to die.
  void coordinator_dies();
  void supervisor_dies();

  // A call of this checkpointer begins.
  void call_begins(Checkpointer checkpointer) { calls_[checkpointer] = {}; }
  // Facts about the checkpointer's last call.
  struct Call {
    std::uint64_t attempt = 0;     // of its outcome; 0: none
    bool has_outcome = false;      // an outcome was handled
    bool told_by_itself = false;   // this rank's own coordinator or succession sent an outcome
    bool own_hook_failed = false;  // before an outcome was handled
  };
  const Call& call(Checkpointer checkpointer) const;

 private:
  void take_state(const ObservedEvent& event);
  void take_sent(const ObservedEvent& event);
  void take_handled(const ObservedEvent& event);
  void take_end_of_hook(const ObservedEvent& event);

  Coverage& coverage_;
  std::map<Checkpointer, RankState> ranks_;
  std::map<Checkpointer, CoordinatorState> coordinators_;
  std::map<Checkpointer, SuccessionState> successions_;
  std::map<Checkpointer, std::uint64_t> coordinator_changes_;  // the cause of the last change of state
  std::map<Checkpointer, Call> calls_;
  bool coordinator_dies_ = false;
  std::uint64_t outcome_to_others_ = 0;   // the cause of the last outcome sent to another rank
  bool reset_failed_ = false;
  std::set<std::uint64_t> failed_hooks_;  // ids of events that lead to the handling of a failed hook's report
};

}  // namespace cairn::simulation
