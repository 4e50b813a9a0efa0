// Ends one call whose coordinator was lost. Runs on the successor: the next live rank after the
// coordinator, in rank order.
//
//   idle --an orphan asks--> gathering --all have answered--> decision
//                                |             |                  ^
//                                |             +--> grace --> stopping (if a rank is busy)
//                                |
//                                +-- a rank has the outcome: adopt it word for word --> idle
//                                +-- a rank follows an earlier, live successor: yield --> idle
//
//   decision --a save; own results delivered--> asking the store --> outcome to all --> idle
//   decision --otherwise--> outcome to all --> idle
//
// The successor asks every rank for its status in the call. An orphan that answers follows this
// successor from then on: it neither delivers results to the old coordinator nor accepts an outcome
// from it. The successor waits for ranks that follow the coordinator or another successor. These
// ranks report what they learn. So all ranks that can communicate end with the same outcome,
// whichever links are broken.
//
// If the coordinator is alive and has made the call, but the call has not begun, the coordinator
// still waits for the orphans, which can no longer join. The successor then tells the coordinator
// which ranks are orphans, and why, and the coordinator ends the call. If the coordinator has not
// made the call yet, orphans that can connect to it are sent back to join its call. The other
// orphans wait with the successor, at most `join_deadline`, until the coordinator makes the call.
//
// A checkpoint can be published only with the results of every rank. If one orphan has not
// delivered its results, the checkpoint does not exist and never will. A successor that delivered
// its own results calls its writer's `committed`, which fences the attempt and reports whether it
// was published. Either the coordinator's publication or the fence wins, never both.
// Waits:      all use Timer::kSuccession. The successor waits twice `heartbeat_timeout` for the
//             ranks' answers. If all followers found the coordinator silent, it does not wait for
//             the coordinator's answer. Then it waits `phase_grace` and `cancel_grace` for running
//             tasks, as in any failed phase, and then `cancel_grace` for the store.
// Own death:  the followers lose this rank and turn to the next.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/events.hpp>

namespace cairn::protocol {

// Successors number their inquiries (StatusRequest) below this. A coordinator that asks about its
// own call, while ranks join or while it settles the outcome, uses this number plus the call's
// ordinal.
inline constexpr std::uint64_t kProbesFrom = std::uint64_t{1} << 63;

// Returns the StatusReply that ends the call of a coordinator which waits for ranks to join.
StatusReply ended_reply(std::uint64_t ordinal, int coordinator, std::uint64_t ticket, std::shared_ptr<const Ending> ending);

// Returns whether `rank` comes before `other` in the order of successors of `coordinator`.
bool succeeds_before(int rank, int other, int coordinator, int world_size);

class Succession {
 public:
  Succession(const Identity& identity, const RuntimeOptions& options) : identity_(identity), options_(options) {}

  bool is_idle() const { return stage_ == Stage::kIdle; }
  std::uint64_t counter() const { return counter_; }

  Effects receive(int from, std::uint64_t counter, const StatusReply& status);
  Effects on(const PeerDown& down);
  Effects on(const TimerFired& fired);
  bool awaits(const TaskEnded& task) const { return outstanding_ != 0 && task.sequence == outstanding_; }
  Effects on(const TaskEnded& task);
  Effects on(const Cancelled& cancelled);

 private:
  enum class Stage : std::uint8_t { kIdle, kGathering, kGrace, kStopping, kOver, kAskingStore };
  struct Member {
    enum class State : std::uint8_t { kAsked, kHeard, kGone };
    State state = State::kAsked;
    bool was_heard = false;
    int losses = 0;      // how often its link has broken since it was first asked
    StatusReply status;  // the latest, if the rank was heard
    std::optional<PeerDown> down;
  };
  struct TakeoverRequest {
    std::uint64_t counter = 0;
    StatusReply status;
  };
  struct Ended {
    int coordinator = 0;
    std::uint64_t counter = 0;
    Operation operation = Operation::kSave;
    std::string checkpoint_id;
    std::set<std::uint64_t> ordinals;
    std::shared_ptr<const Ending> ending;
  };

  // How many members (ranks that were asked) of each kind there are. `evaluate` uses these counts,
  // so that an answer does not cost O(ranks).
  struct Tally {
    int asked = 0;    // have not answered yet
    int ended = 0;    // have the outcome
    int waiting = 0;  // follow the coordinator or another successor
    int followers = 0;
    int stranded = 0;             // followers that cannot connect to the coordinator
    int busy = 0;                 // followers with a running task
    int saw_it_go = 0;            // followers that lost the coordinator otherwise than by silence
    std::map<int, int> promised;  // by successor: how many members follow it
  };

  template <class Change>
  void change(int rank, Change apply);
  void count(const Member& member, int by);
  bool is_of_this_call(std::uint64_t counter, const StatusReply& status) const;
  void take_takeover_request(int from, std::uint64_t counter, const StatusReply& status);
  void take_answer(int from, std::uint64_t counter, const StatusReply& status);
  void start(std::uint64_t counter, const StatusReply& status);
  void ask(int rank);
  void evaluate();
  bool has_not_called(const Member& coordinator) const;
  bool send_back();
  bool find_earlier_successor();
  bool is_silent_to_followers() const;
  void decide();
  FailureMap judge() const;
  Failure coordinators_failure() const;
  void conclude(Committed committed);
  void conclude(const std::shared_ptr<const Ending>& ending);
  void hand_over(int leader);
  void go_idle();
  const Ended* find_ended(std::uint64_t counter, const StatusReply& status) const;
  void answer(int to, const Ended& ended, std::uint64_t ticket);
  void tell_coordinator(const Ended& ended, const StatusReply& its);
  void tell_of_orphans();
  bool follows(const Member& member) const {
    return member.state == Member::State::kHeard && member.status.kind == RankStatus::kOrphaned;
  }

  void send(int to, Message body) { effects_.emplace_back(Send{to, counter_, std::move(body)}); }
  void start_timer(Duration after) { effects_.emplace_back(StartTimer{Timer::kSuccession, after}); }
  void ignore(const char* why) { effects_.emplace_back(InputIgnored{Ignored::kInput, why}); }
  void note(SuccessionState state) { effects_.emplace_back(StateChanged{state}); }
  Duration answer_deadline() const { return 2 * options_.heartbeat_timeout; }

  const Identity identity_;
  const RuntimeOptions options_;
  Effects effects_;

  // State of the call that is being ended.
  Stage stage_ = Stage::kIdle;
  int coordinator_ = 0;
  std::uint64_t counter_ = 0;  // 0: no rank known so far has begun the call
  StatusReply call_;           // of the rank that asked first; names the call
  std::map<int, Member> members_;
  Tally tally_;
  std::set<int> returnable_;       // followers that can connect to the coordinator
  bool told_of_orphans_ = false;   // the coordinator has been told which ranks cannot reach it
  std::uint64_t outstanding_ = 0;  // sequence number of the task that asks the store
  int rounds_ = 0;                 // rounds of repeated questions
  bool proven_unpublished_ = false;
  CallResult outcome_;  // as far as it is known, while the store is asked

  // State across calls.
  std::uint64_t inquiry_ = 0;
  std::uint64_t tasks_run_ = 0;
  std::map<int, TakeoverRequest> takeover_requests_;  // about other calls, to be handled later
  std::deque<Ended> ended_;
};

}  // namespace cairn::protocol
