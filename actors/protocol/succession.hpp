// Ends one call whose coordinator was lost, on the rank that succeeds it: the next live one after it, in the order of ranks.
//
//   idle --an orphan asks--> gathering --all have answered--+--> grace --> stopping --+--> asking the store --> outcome to all --> idle
//                                |                          |   somebody is busy      |    if a record may have been published
//                                |                          +-------------------------+
//                                +--- somebody has the outcome: that one, word for word --> idle
//                                +--- somebody follows an earlier successor, which is there: yield to it --> idle
//
// Every rank is asked how it stands to the call. An orphan that answers follows this successor from then on: it delivers nothing to the
// old coordinator and takes no outcome from it. A rank that hears the coordinator, or follows another successor, is waited for: what it
// learns, it says. So of ranks that can talk, none ends with another outcome than the rest, however links are broken between them.
//
// If the coordinator is alive and the call has not begun, it waits for orphans that will never join. The successor tells it of
// them, with the reason, and the coordinator ends the call.
//
// What the store is asked: a checkpoint can be published only with the results of every rank. If one orphan has not delivered, it
// never was and never will be. Otherwise the writer's `committed` fences the attempt and says whether it was published; of the
// coordinator's publication and the fence, one wins.
// Waits:      twice `silence` for answers, though not for that of a coordinator whom all followers have found silent; then the graces
//             of a failed phase, then `cancel_grace` for the store: Timer::kSuccession.
// Own death:  the followers lose this rank, and turn to the next.
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

// Inquiries from here on are not a successor's, but a coordinator's about its call of that ordinal, while ranks join it.
inline constexpr std::uint64_t kProbesFrom = std::uint64_t{1} << 63;

// Of two ranks, which comes first to succeed `coordinator`.
bool succeeds_before(int rank, int other, int coordinator, int world_size);

class Succession {
 public:
  Succession(const Identity& identity, const RuntimeOptions& options) : identity_(identity), options_(options) {}

  bool is_idle() const { return stage_ == Stage::kIdle; }
  std::uint64_t counter() const { return counter_; }

  Effects receive(int from, std::uint64_t counter, const Standing& standing);
  Effects on(const PeerDown& down);
  Effects on(const TimerFired& fired);
  bool awaits(const HookDone& done) const { return outstanding_ != 0 && done.sequence == outstanding_; }
  Effects on(const HookDone& done);
  Effects on(const Cancelled& cancelled);

 private:
  enum class Stage : std::uint8_t { kIdle, kGathering, kGrace, kStopping, kOver, kAskingStore };
  struct Member {
    enum class State : std::uint8_t { kAsked, kHeard, kGone };
    State state = State::kAsked;
    bool was_heard = false;
    int losses = 0;     // links to it that broke since it was first asked
    Standing standing;  // the latest, once it was heard
    std::optional<PeerDown> down;
  };
  struct Appeal {
    std::uint64_t counter = 0;
    Standing standing;
  };
  struct Ended {
    int coordinator = 0;
    std::uint64_t counter = 0;
    Operation operation = Operation::kSave;
    std::string checkpoint_id;
    std::set<std::uint64_t> ordinals;
    std::shared_ptr<const Ending> ending;
  };

  // The number of members of each kind that `evaluate` needs, so that an answer does not cost O(ranks).
  struct Tally {
    int asked = 0;      // that have not answered yet
    int ended = 0;      // that have the outcome
    int waiting = 0;    // that hear the coordinator, or follow another successor
    int followers = 0;
    int busy = 0;       // followers with a running hook
    int saw_it_go = 0;  // followers that have not found the coordinator silent
    std::map<int, int> promised;  // by the successor that they follow
  };

  template <class Change>
  void change(int rank, Change apply);
  void count(const Member& member, int by);
  bool is_of_this_call(std::uint64_t counter, const Standing& standing) const;
  void take_appeal(int from, std::uint64_t counter, const Standing& standing);
  void take_answer(int from, std::uint64_t counter, const Standing& standing);
  void start(std::uint64_t counter, const Standing& standing);
  void ask(int rank);
  void evaluate();
  bool find_earlier_successor();
  bool is_silent_to_followers() const;
  void decide();
  FailureMap judge() const;
  Failure coordinators_failure() const;
  void conclude(Committed committed);
  void conclude(const std::shared_ptr<const Ending>& ending);
  void hand_over(int leader);
  void go_idle();
  const Ended* find_ended(std::uint64_t counter, const Standing& standing) const;
  void answer(int to, const Ended& ended, std::uint64_t ticket);
  void tell_coordinator(const Ended& ended, const Standing& its);
  void tell_of_orphans();
  bool follows(const Member& member) const {
    return member.state == Member::State::kHeard && member.standing.kind == StandingKind::kOrphaned;
  }

  void send(int to, Message body) { effects_.emplace_back(Send{to, counter_, std::move(body)}); }
  void start_timer(Duration after) { effects_.emplace_back(StartTimer{Timer::kSuccession, after}); }
  void note(const char* what, bool ok = true) { effects_.emplace_back(Note{what, ok}); }
  Duration answer_deadline() const { return 2 * options_.silence; }

  const Identity identity_;
  const RuntimeOptions options_;
  Effects effects_;

  // Of the call that is being ended.
  Stage stage_ = Stage::kIdle;
  int coordinator_ = 0;
  std::uint64_t counter_ = 0;  // 0 as long as no rank has named it: then no rank has heard that it had begun
  Standing call_;              // for ordinal, operation and checkpoint id
  std::map<int, Member> members_;
  Tally tally_;
  bool told_of_orphans_ = false;   // the coordinator has been told which ranks cannot reach it
  std::uint64_t outstanding_ = 0;  // of the hook that asks the store
  int rounds_ = 0;                 // of asking those again who are waited for
  bool proven_unpublished_ = false;
  FailureMap failures_;

  // Across calls.
  std::uint64_t inquiry_ = 0;
  std::uint64_t hooks_run_ = 0;
  std::map<int, Appeal> appeals_;  // of other calls, which come later
  std::deque<Ended> ended_;
};

}  // namespace cairn::protocol
