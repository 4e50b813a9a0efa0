// One rank's side of the saves and loads of one checkpointer, one after the other.
//
//   idle --call--> joining --Begin--> preparing --own plan sent--> planned --global plan--> moving --results sent--> reported
//                     |                   | failed                    |                       | failed                  |
//                     |                   +---------> reported <------+-----------------------+                         |
//                     +----------- Outcome, or an end of its own (coordinator lost or silent, cancelled) ---------------+
//                                                                  |
//                                                 ending (the last hook lets go) --> idle
//
// Waits:      joining, planned and reported for the coordinator, each under Timer::kAnswer; preparing, moving and ending for own hooks.
// Hooks:      one at a time. An outcome that arrives while one runs takes effect when it has ended.
// Peer death: only the coordinator's matters here; the coordinator judges the others.
// Duplicates, late messages and messages of other attempts are ignored, with a Note.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/protocol/plan_cache.hpp>

namespace cairn::protocol {

class RankMachine {
 public:
  enum class State : std::uint8_t { kIdle, kJoining, kPreparing, kPlanned, kMoving, kReported, kEnding };

  RankMachine(Identity identity, const RuntimeOptions& options);

  // Throws InternalError when an invariant is broken, for example a call that starts while another is running.
  Effects step(const Event& event);

  State state() const { return state_; }
  bool is_idle() const { return state_ == State::kIdle; }
  std::uint64_t counter() const { return counter_; }  // of the running attempt, 0 before Begin
  int coordinator_rank() const { return call_.coordinator_rank; }
  std::uint64_t ticket() const { return call_.ticket; }
  // How the last attempts ended, oldest first: at most `outcomes_kept`.
  const std::deque<std::pair<std::uint64_t, Outcome>>& outcomes() const { return outcomes_; }

 private:
  void on(const CallStarted& call);
  void on(const Received& received);
  void on(const HookDone& done);
  void on(const TimerFired& fired);
  void on(const PeerDown& down);
  void on(const PeerUp&) {}
  void on(const ActorDied& died);
  void on(const Cancelled& cancelled);

  void receive(const Begin& begin);
  void receive(const NeedLocalPlan& need);
  void receive(const GlobalSavePlan& plan);
  void receive(const UseCachedPlan& cached);
  void receive(const GlobalLoadPlan& plan);
  void receive(const Outcome& outcome);
  void receive(const CoordinatorDown& down);
  template <class Other>
  void receive(const Other&) {
    ignore("message for a coordinator");
  }

  void run(Hook hook, HookValue argument = {});
  void send_local_plan(HookValue plan);
  Message local_plan_message(HookValue plan);
  void send_results(HookValue results);
  void report(Failure failure);
  void wait_for_coordinator(Duration deadline);
  void tell_coordinator_of_leaving(std::string why);
  void end_alone(Failure failure, Committed committed);
  Failure failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor, std::string what) const;
  void end(Outcome outcome);
  void let_go();
  void finish();

  void become(State state);
  void send(Message body);
  void ignore(const char* why);
  Phase phase() const;
  Committed committed_unheard() const;
  bool waits() const { return state_ == State::kJoining || state_ == State::kPlanned || state_ == State::kReported; }

  const Identity identity_;
  const RuntimeOptions options_;
  Effects effects_;

  // Of the running call.
  State state_ = State::kIdle;
  CallStarted call_;
  std::uint64_t counter_ = 0;
  std::string save_id_;
  std::vector<std::string> key_order_;
  Hook hook_ = Hook::kReset;
  std::uint64_t outstanding_ = 0;  // sequence number of the hook that runs, 0 if none
  bool began_ = false;             // some hook has run: there is something to let go of
  std::optional<Failure> own_failure_;
  std::optional<Outcome> outcome_;
  std::string metadata_save_id_;
  std::shared_ptr<const SavePlan> local_plan_;
  Digest local_digest_{};

  // Across calls.
  std::uint64_t sequence_ = 0;
  std::uint64_t counter_seen_ = 0;
  std::map<int, DigestSet> kept_by_coordinator_;  // local plans that a coordinator has said it keeps
  PlanCache global_plans_;
  std::deque<std::pair<std::uint64_t, Outcome>> outcomes_;
};

const char* to_string(RankMachine::State state) noexcept;

}  // namespace cairn::protocol
