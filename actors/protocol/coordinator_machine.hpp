// The coordinator's side of the saves, loads and agreements that this rank coordinates for one
// checkpointer, one call at a time.
//
//   idle --first Join--> joining --all joined, agreed--> local plans --all in--> global plan
//                                                                                     |
//      +---------------------------------- made --------------------------------------+
//      v
//    moving --all in; save--> finishing --task failed--> settling
//      |                          |                              |
//      +-- all in; load           +-- published                  +-- existence known
//      v                          v                              v
//      Outcome to every rank --> idle
//
// A failure in any state, a missed deadline or a mismatch of the calls also leads to the Outcome.
// Agreement:  joining --all joined, agreed--> deciding --answer or failure--> Outcome to every
//             rank. Each rank's Join carries its input to the decision (`AgreeCall::text`).
// Failures:   after the first failure in a phase, the other ranks have `phase_grace` to end the
//             phase, so that the failure map also contains their failures. Then they are told to
//             stop. Ranks that have not stopped after `cancel_grace` are reported as busy. If a
//             rank is lost, is silent or has left the call, it counts as having answered. Losing a
//             rank that has delivered its results is not a failure. When a rank's caller cancels
//             the call, the other ranks are told to stop without `phase_grace`. Once all results
//             are in, a cancellation is ignored, because publication may have begun.
// Waits:      every state but idle runs under Timer::kPhase. Joining also runs under Timer::kProbe:
//             one second after this rank has joined, the machine probes each missing rank once. If
//             that rank's process has exited, the links report it as lost. While the machine waits
//             for ranks, Timer::kWaiting triggers warnings.
// Own death:  the supervisor tells all ranks (CoordinatorDown). Ranks in joining send Join again.
//             The other ranks turn to a successor. A new machine starts idle.
// Own freeze: the process was stopped for longer than `heartbeat_timeout`, and ranks gave up on it.
//             The machine decides nothing any more: it tells all ranks (CoordinatorDown, for this
//             call), which turn to a successor. But if publication was in progress, the machine
//             finishes it. If another rank has ended the call meanwhile, the machine adopts the
//             outcome of that rank.
// Progress:   the machine adds up the ranks' progress reports and sends the sums back to the ranks.
//             Progress reports affect no decision.
// Succession: when this rank succeeds a lost coordinator, the machine also ends that coordinator's
//             calls, in parallel with its own: see succession.hpp.
// Duplicates, late messages and messages of other attempts are ignored, with an InputIgnored. A
// rank that sends a message of an ended attempt gets that attempt's Outcome again.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/protocol/plan_cache.hpp>
#include <cairn/actors/protocol/succession.hpp>
#include <cairn/base/wait_notices.hpp>

namespace cairn::protocol {

// The state of the call that a coordinator runs.
struct CoordinatedCall {
  std::uint64_t counter_ = 0;
  std::map<int, Join> joins_;
  CallResult outcome_;      // as far as it is known: the failures so far
  std::set<int> answered_;  // in the running phase
  std::set<int> gone_;      // ranks that had joined and no longer take part
  std::set<int> left_;      // ranks that had joined and ended the call on their own
  WaitNotices notices_;     // about the wait for ranks
  Duration wait_limit_{0};
  bool hurried_ = false;           // a rank has failed or cancelled: the others have `phase_grace`, or none
  bool given_up_ = false;          // another rank gave up on this rank during publication
  bool stopping_ = false;          // the others were told to stop
  std::string awaited_at_cancel_;  // text: the ranks or hook awaited at the first Cancel with kDeadline
  std::vector<std::shared_ptr<const SavePlan>> local_save_plans_;  // by rank
  std::vector<std::shared_ptr<const LoadPlan>> local_load_plans_;
  std::vector<std::string> metadata_save_ids_;
  std::shared_ptr<Metadata> metadata_;
  std::vector<WriteResults> results_;
  std::vector<Progress> progress_;    // by rank, the latest
  std::map<int, int> asked_;          // ranks that may know the outcome, and how often they were asked
  std::optional<Committed> settled_;  // whether the checkpoint exists, according to this rank's writer
  std::uint64_t outstanding_ = 0;     // sequence number of the running task, 0 if none
  Hook hook_ = Hook::kFinish;         // the main hook of that task
};

class CoordinatorMachine : private CoordinatedCall {
 public:
  using State = CoordinatorState;

  CoordinatorMachine(Identity identity, const RuntimeOptions& options);

  // Throws InternalError when an invariant is broken.
  Effects step(const Event& event);

  State state() const { return state_; }
  bool is_idle() const { return state_ == State::kIdle && succession_.is_idle(); }
  std::uint64_t counter() const { return counter_; }            // the running attempt's counter, 0 if there is none
  std::uint64_t counter_seen() const { return counter_seen_; }  // the largest counter that this machine knows of

 private:
  // State kept about one rank between attempts.
  struct Kept {
    KeptPlan local_plan;
    std::uint64_t ended_ticket = 0;  // the rank's calls up to this ticket have ended
  };
  struct Ended {
    std::uint64_t counter = 0;             // 0: the call failed while the ranks joined
    std::map<int, std::uint64_t> tickets;  // the tickets of the ranks that had joined, by rank
    std::shared_ptr<const Ending> ending;
  };

  // A call that failed before all ranks had joined it. A rank that joins it later gets the same
  // outcome.
  struct Missed {
    Join join;  // the Join of one of the ranks that had joined
    std::set<std::uint64_t> ordinals;
    std::set<int> absent;
    std::shared_ptr<const Ending> ending;
  };

  // Calls that one rank ended without joining. Other ranks have yet to join them.
  struct Skipped {
    std::uint64_t calls = 0;
    Failure failure;  // the failure of the latest of these calls
  };

  void on(const CallStarted&) { ignore("call for a rank's machine"); }
  void on(const CancelRequested&) { ignore("cancellation for a rank's machine"); }
  void on(const Received& received);
  void on(const TaskEnded& task);
  void on(const TimerFired& fired);
  void on(const ProgressDue&) { ignore("timer of a rank's machine"); }
  void on(const PeerDown& down);
  void on(const PeerUp& up);
  void on(const ActorDied& died);
  void on(const Cancelled& cancelled);

  void receive(int from, const Join& join);
  void receive(int from, const LocalSavePlan& plan);
  void receive(int from, const SameSavePlan& same);
  void receive(int from, const LocalLoadPlan& plan);
  void receive(int from, const Written& written);
  void receive(int from, const ReadDone& done);
  void receive(int from, const PhaseFailed& failed);
  void receive(int from, const PhaseStopped& stopped);
  void receive(int from, const Cancel& cancel);
  void receive(int from, const Withdraw& withdraw);
  void receive(int from, const Progress& progress);
  template <class Other>
  void receive(int, const Other&) {
    ignore("message for a rank");
  }

  Moved moved_by(int rank, bool has_ended) const;
  JobProgress job_progress() const;
  bool find_disagreement(int from, const Join& join);
  void answer_orphan(int from, std::uint64_t counter, const StatusReply& status);
  template <class Call>
  bool answer_missed(int from, const Call& call, std::uint64_t counter = 0);
  bool send_outcome_again(int from, std::uint64_t counter, std::uint64_t ticket);
  void join_if_complete();
  bool probe_lost_ranks();
  void request_status(int rank);
  void put_off_other_calls();
  void take_probe_answer(int from, std::uint64_t counter, const StatusReply& status);
  void skip_call(int rank, Failure failure);
  void fail_skipped_call();
  bool was_skipped() const;
  void count_skipped_call();
  void forget_join(int rank);
  void stop_joining();
  FailureMap judge_joins() const;
  void begin();
  void decide();
  void take_local_plan(int from, std::shared_ptr<const SavePlan> plan);
  void answered(int from);
  void fail(int rank, Failure failure);
  void hurry();
  void tell_to_stop();
  void cancel_call(int from, const Cancel& message);
  void end_next_call(int from, Failure failure);
  std::string awaited() const;
  void end_phase_if_complete();
  void plan_globally();
  void plan_load_globally();
  void start_moving();
  void publish();
  void settle(bool given_up, std::optional<Committed> committed);
  void ask_for_end(int rank);
  void end_settling_if_complete();
  void end(const FailureMap& failures, Committed committed);
  void end(std::shared_ptr<const Ending> ending, const std::exception_ptr& own_exception = nullptr);
  void remember(const std::shared_ptr<const Ending>& ending);
  void resign(const PeerDown& down);
  void forget_call();
  void restart_joins();

  // Handle the results of the tasks that this rank ran for the coordinator.
  void ended(const GlobalSavePlans& made);
  void ended(const GlobalLoadPlans& made);
  void ended(const Answer& answer);
  void ended(const Published& published);
  void ended(Committed committed);
  void ended(const Stopped& stopped);
  void ended(const Failure& failure);
  template <class Other>
  void ended(const Other&) {
    throw InternalError("a coordinator's machine ran a task that is not its own");
  }

  void run(Task task);
  // Empty if the attempt has not begun.
  std::string save_id_of(std::uint64_t counter) const;
  // Names the hooks of the running task. This machine does not know which of them runs.
  std::string own_hook() const {
    const std::string name = name_of(hook_, operation());
    return hook_ == Hook::kCreateGlobalPlan ? name + " or prepare_global_plan" : name;
  }
  void become(State state);
  void append(Effects effects);
  void send(int to, Message body);
  void ignore(const char* why);
  void ignore_timer() { effects_.emplace_back(InputIgnored{Ignored::kStoppedTimer}); }
  void wait_for_ranks(Duration deadline);
  void warn_of_waiting();
  std::vector<int> missing_ranks() const;
  void ask_later();
  void ask_absent_ranks();
  void start_timer(Duration after) { effects_.emplace_back(StartTimer{Timer::kPhase, after}); }
  Failure failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor, const std::string& what) const;
  Phase phase() const;
  Operation operation() const { return own_join().operation; }
  const Join& own_join() const;
  // Returns whether all ranks wait for the hook that makes the global plan or the decision.
  bool decides() const { return state_ == State::kGlobalPlan || state_ == State::kDeciding; }
  bool collects() const { return state_ == State::kLocalPlans || state_ == State::kMoving; }
  bool is_attempt() const { return state_ != State::kIdle && state_ != State::kJoining; }

  const Identity identity_;
  const RuntimeOptions options_;
  Effects effects_;

  State state_ = State::kIdle;

  // State across attempts.
  std::uint64_t sequence_ = 0;
  std::uint64_t counter_seen_ = 0;
  std::map<int, Join> next_joins_;  // joins that arrived during an attempt
  std::map<int, Skipped> skipped_;  // by rank; if any rank is in it, every rank that has joined is, too
  std::map<int, PeerDown> down_;    // ranks without a connection, or with an unreadable message
  std::set<int> suspects_;          // ranks in `down_` that may have come back
  bool all_probed_ = false;         // each suspect is in `probed_`
  std::set<int> probed_;            // ranks that were asked, during joining, whether they are alive
  std::map<int, Kept> kept_;
  std::shared_ptr<const KeptGlobalPlans> last_global_;
  std::deque<Ended> ended_;
  std::deque<Missed> missed_;
  CallRegister register_;  // used only on rank 0 (kRegistrar): detects ranks that name different coordinators
  Succession succession_;
};

}  // namespace cairn::protocol
