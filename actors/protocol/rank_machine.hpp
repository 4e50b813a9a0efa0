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
// Hooks:      one at a time, but for an asynchronous write that is told to stop: `abandon` runs beside it. An outcome that arrives
//             while one runs takes effect when it has ended.
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
  std::uint64_t counter() const { return counter_; }               // of the running attempt, 0 before Begin
  std::uint64_t counter_seen() const { return counter_seen_; }     // the largest that this machine knows of
  int coordinator_rank() const { return call_.coordinator_rank; }  // as the caller gave it: may be no rank at all

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
  void receive(const StopPhase& stop);
  void receive(const Unreadable& unreadable);
  template <class Other>
  void receive(const Other&) {
    ignore("message for a coordinator");
  }

  void run(Hook hook, HookValue argument = {});
  RunHook hook_effect(Hook hook, std::uint64_t sequence) const;
  bool has_hook_running() const { return outstanding_ != 0 || stop_outstanding_ != 0; }
  void stop_writing();
  void withdraw();
  Failure no_coordinator() const;
  void send_local_plan(HookValue plan);
  Message local_plan_message(HookValue plan);
  void send_results(HookValue results);
  void report(Failure failure);
  void report_stopped();
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
  bool has_coordinator() const { return call_.coordinator_rank >= 0 && call_.coordinator_rank < identity_.world_size; }
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
  std::uint64_t outstanding_ = 0;       // sequence number of the hook that runs, 0 if none
  std::uint64_t stop_outstanding_ = 0;  // of the hook that stops the writer beside it
  bool stopping_ = false;               // told to: no further hook of the phase is begun
  bool abandoned_ = false;              // the writer has let go of what it wrote
  bool began_ = false;                  // some hook has run: there is something to let go of
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
};

const char* to_string(RankMachine::State state) noexcept;

}  // namespace cairn::protocol
