// One rank's side of the saves, loads and agreements of one checkpointer, one call at a time.
//
//   idle --call--> joining --Begin--> preparing --plan sent--> planned --global plan--> moving
//   preparing, planned, moving --failed or stopped--> reported <--results sent-- moving
//   all but idle --Outcome, or ended alone (shutdown, no rank reachable)--> ending
//   ending --the last task has ended--> idle
//
// A call that succeeded, or that ran no task, skips ending. save.cpp has the steps of a save in
// their order, load.cpp those of a load where they differ, failure.cpp those after a failure.
// Agreement:  stays in joining until the Outcome; this rank runs no task.
// Waits:      joining, planned and reported wait for the coordinator, each under Timer::kAnswer.
//             preparing, moving and ending wait for this rank's own tasks.
// Tasks:      run one at a time, with one exception: Abandon runs beside the Write or Read that it
//             stops, once the writer or reader has returned its future. An outcome that arrives
//             while a task runs takes effect when the task ends. That of a load also stops a
//             running Read.
// Progress:   from Begin to the outcome, whenever Timer::kProgress fires, the rank reports its
//             progress to the coordinator and gets the progress of all ranks.
//             A rank that has lost its coordinator reports nothing. Progress reports affect no
//             decision.
// Cancelled:  when the caller cancels the call or its deadline passes, the rank stops, tells the
//             coordinator, and waits for the outcome as in any failed call.
// Peer death: the coordinator decides about lost ranks. If the coordinator itself is lost, the rank
//             continues its phase. If the link was closed, the coordinator may be alive, so the
//             rank first asks it once more. Then the rank turns to the successors (succession.hpp),
//             and follows one that sends StatusRequest. While it follows a successor, it accepts an
//             outcome only from that successor. It sends no results to a lost coordinator until the
//             coordinator answers.
// Duplicates, late messages and messages of other attempts are ignored, with an InputIgnored.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/protocol/plan_cache.hpp>

namespace cairn::protocol {

// A rank that has lost its coordinator ends its call alone after this many turns to another rank,
// or this many rounds through all ranks: links break faster than the ranks can agree.
inline constexpr int kTurnsMax = 16;  // within one round
inline constexpr int kRoundsMax = 3;

// A call that has ended on a rank.
struct EndedCall {
  std::uint64_t counter = 0;
  Join join;
  std::shared_ptr<const Ending> ending;
};

// The state of one call on one rank.
struct CallOnRank {
  CallStarted call_;
  std::uint64_t counter_ = 0;
  std::string save_id_;
  std::uint64_t outstanding_ = 0;       // sequence number of the running task, 0 if none
  std::uint64_t stop_outstanding_ = 0;  // sequence number of the Abandon that stops it, 0 if none
  bool stopping_ = false;               // told to stop: no further hook of the phase starts
  bool abandoned_ = false;              // the writer or reader was told to stop; files stay until the outcome
  bool began_ = false;                  // some task has run, so there is something to release
  std::optional<Failure> own_failure_;
  std::optional<Outcome> outcome_;
  Phase reported_phase_ = Phase::kJoin;
  std::optional<Message> report_;     // the report sent, or to be sent, at the end of the last phase
  std::uint64_t progress_told_ = 0;   // number of progress reports sent in this attempt
  std::uint64_t progress_heard_ = 0;  // the largest number in an answer to a report
  bool delivered_ = false;            // the results were sent to the coordinator
  std::shared_ptr<const SavePlan> local_plan_;
  Digest local_digest_{};

  // State after the loss of the coordinator.
  std::optional<Failure> lost_;          // how the coordinator was lost
  bool unopened_ = false;                // the last attempt to connect to the coordinator failed
  int candidate_ = -1;                   // the rank that was asked to end the call, and has not answered yet
  int leader_ = -1;                      // the successor that this rank follows
  std::set<int> tried_;                  // ranks already asked
  int turns_ = 0;                        // how often this rank turned to another rank, in this round
  int rounds_ = 0;                       // rounds through all ranks
  std::map<int, std::uint64_t> askers_;  // ranks to notify of changes on this rank, with their inquiry numbers
};

class RankMachine : private CallOnRank {
 public:
  using State = RankState;

  RankMachine(Identity identity, const RuntimeOptions& options);

  // Throws InternalError when an invariant is broken, for example if a call starts while another is
  // running.
  Effects step(const Event& event);

  State state() const { return state_; }
  bool is_idle() const { return state_ == State::kIdle; }
  std::uint64_t counter() const { return counter_; }            // the running attempt's counter, 0 before Begin
  std::uint64_t counter_seen() const { return counter_seen_; }  // the largest counter that this machine knows of
  // Returns the outcome of a failed call that waits for a running task to end, otherwise nothing.
  std::optional<CallResult> outcome_before_end() const;
  // Returns the last call whose outcome was not set by this rank alone; null if there was none.
  const EndedCall* last_call() const { return ended_.empty() ? nullptr : &ended_.back(); }
  int coordinator_rank() const { return call_.coordinator_rank; }  // as given by the caller; possibly not a valid rank

 private:
  void keep(const std::shared_ptr<const Ending>& ending, bool alone);
  const EndedCall* find_ended(std::uint64_t counter, const StatusRequest& ask) const;
  bool is_in(std::uint64_t counter, const StatusRequest& ask) const;

  void on(const CallStarted& call);
  void on(const CancelRequested& request);
  void on(const Received& received);
  void on(const TaskEnded& ended);
  void on(const TimerFired& fired);
  void on(const ProgressDue& due);
  void on(const PeerDown& down);
  void on(const PeerUp& up) { down_.erase(up.rank); }
  void on(const ActorDied& died);
  void on(const Cancelled& cancelled);

  void receive(const Begin& begin);
  void receive(const NeedLocalPlan& need);
  void receive(const GlobalSavePlan& plan);
  void receive(const GlobalLoadPlan& plan);
  void receive(const Outcome& outcome) { end(outcome); }
  void receive(const CoordinatorDown& down);
  void receive(const StopPhase& stop);
  void receive(int from, std::uint64_t counter, const StatusRequest& ask);
  void receive(int from, const FollowOther& other);
  void receive(const Unreadable& unreadable);
  void receive(const JobProgress& job);
  template <class Other>
  void receive(const Other&) {
    ignore("message for a coordinator");
  }

  void time_progress();
  std::uint64_t run(Task task);
  bool has_task_running() const { return outstanding_ != 0 || stop_outstanding_ != 0; }
  void stop_tasks();
  // Handle the results of this rank's tasks.
  void ended(const StateGathered& gathered);
  void ended(const LocalSavePlan& plan);
  void ended(const LocalLoadPlan& plan);
  void ended(const Written& written);
  void ended(const ReadDone& done);
  template <class Other>
  void ended(const Other&) {
    throw InternalError("a rank's machine ran a task that is not its own");
  }
  void join();
  bool is_heard(const Received& received) const;
  void lose_coordinator(Failure failure, bool may_be_back = true);
  void lose_links(Failure failure);
  void fail_to_talk(const PeerDown& down);
  void turn_to_next();
  void request_takeover_by(int rank);
  void follow(int rank);
  void return_to_coordinator();
  bool cannot_join() const;
  StatusReply status_reply(RankStatus kind, std::uint64_t inquiry) const;
  void send_status(int asker);
  void tell_early_askers();
  void tell_askers_of_end(const std::shared_ptr<const Ending>& ending, bool alone);
  void withdraw();
  Failure no_coordinator() const;
  std::string describe_call() const;
  void report_end_of_phase(State next, Message message);
  void send_report();
  void report(Failure failure);
  void report_stopped();
  void wait_for_coordinator(Duration deadline);
  void tell_coordinator_of_leaving(const std::string& why);
  void pass_deadline(const char* running_hook);
  void cancel_call(ErrorCode code, const std::string& why);
  void end_alone(Failure failure, Committed committed);
  Failure failure_of(int rank, FailureKind kind, ErrorCode code, const char* actor, const std::string& what) const;
  void end(const Outcome& outcome, bool alone = false);
  void release_call();
  void release();
  void restore_own_exception(FailureMap& failures) const;
  void become_idle();

  void become(State state);
  void send(Message body);
  void turn(CallTurn turn) { effects_.emplace_back(StateChanged{turn}); }
  void ignore(const char* why) { effects_.emplace_back(InputIgnored{Ignored::kInput, why}); }
  void ignore_timer() { effects_.emplace_back(InputIgnored{Ignored::kStoppedTimer}); }
  Phase phase() const;
  Phase phase_of_coordinator() const;
  Committed committed_unheard() const;
  bool has_coordinator() const { return call_.coordinator_rank >= 0 && call_.coordinator_rank < identity_.world_size; }
  // Returns whether a call is running and has no outcome yet.
  bool runs() const { return state_ != State::kIdle && state_ != State::kEnding && !outcome_; }
  bool waits() const { return state_ == State::kJoining || state_ == State::kPlanned || state_ == State::kReported; }

  const Identity identity_;
  const RuntimeOptions options_;
  Effects effects_;

  State state_ = State::kIdle;
  // Successors that asked about a call that had not begun, and that this rank had not made yet.
  std::map<int, StatusRequest> early_askers_;

  // State across calls.
  std::set<int> down_;  // ranks without a connection
  std::deque<EndedCall> ended_;
  std::uint64_t sequence_ = 0;
  std::uint64_t counter_seen_ = 0;
  std::map<int, Digest> kept_by_coordinator_;  // by coordinator: the digest of the local plan that it keeps
};

}  // namespace cairn::protocol
