// Ranks and coordinators as bare state machines, and a seeded scheduler that chooses the next
// event: a message arrives or is duplicated, a task ends, or a rank dies, freezes or thaws.
// When nothing else can happen, a deadline passes.
#pragma once

#include <cairn/tests/support/plain.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/tests/support/stride.hpp>

namespace cairn::test {

using namespace cairn::protocol;

inline const char* const kIncarnation = "0123456789abcdef0123456789abcdef";

inline Identity identity_of(int rank, int world_size) { return {rank, world_size, kIncarnation, "main"}; }

inline std::shared_ptr<SavePlan> plan_of(int rank, std::uint64_t content = 1) {
  auto plan = std::make_shared<SavePlan>();
  WriteItem tensor;
  tensor.name = plan->names.intern("weight");
  tensor.type = WriteItemType::kShard;
  tensor.size = {64, 2};
  tensor.chunk = Box{{rank, 0}, {1, 2}};
  plan->items.push_back(tensor);
  WriteItem bytes;
  bytes.name = plan->names.intern("bytes." + std::to_string(rank));
  bytes.content_hash = content;
  bytes.content_bytes = 16;
  plan->items.push_back(bytes);
  return plan;
}

inline CallStarted call_of(std::uint64_t ticket, Operation operation = Operation::kSave, int coordinator = 0) {
  CallStarted call;
  call.ticket = call.ordinal = ticket;
  call.operation = operation;
  call.checkpoint_id = "step_1";
  call.coordinator_rank = coordinator;
  return call;
}

// Returns the result with which a well-behaved planner, writer or reader ends a task.
inline TaskResult answer_to(const RunTask& run, int rank, std::uint64_t content = 1) {
  if (std::holds_alternative<GatherState>(run.task)) return StateGathered{};
  if (std::holds_alternative<CreateLocalPlan>(run.task)) {
    if (run.operation == Operation::kLoad) return LocalLoadPlan{std::make_shared<LoadPlan>(), "seen"};
    const auto plan = plan_of(rank, content);
    return LocalSavePlan{plan, plan_digest(*plan)};
  }
  if (const auto* save = std::get_if<CreateGlobalSavePlan>(&run.task)) {
    GlobalSavePlans made{{}, std::make_shared<Metadata>()};
    for (const auto& plan : save->local_plans) made.plans.push_back(std::make_shared<const SavePlan>(*plan));
    return made;
  }
  if (const auto* load = std::get_if<CreateGlobalLoadPlan>(&run.task)) return GlobalLoadPlans{load->local_plans};
  if (std::holds_alternative<Write>(run.task)) {
    auto results = std::make_shared<WriteResults>();
    results->files.push_back({"file " + std::to_string(rank), 1, 2, 1, {}});
    return Written{results};
  }
  if (std::holds_alternative<Read>(run.task)) return ReadDone{};
  if (std::holds_alternative<Finish>(run.task)) return Published{};
  if (std::holds_alternative<AskCommitted>(run.task)) return Committed::kNo;
  if (const auto* decide = std::get_if<Decide>(&run.task)) {
    Answer answer;
    for (const auto& text : decide->texts) answer.text += text + ";";
    return answer;
  }
  return Released{};
}

// Faults, each with its probability per step in percent.
struct Trouble {
  int duplicate = 0;
  int cancel_call = 0;  // a rank's caller cancels its call
  int kill = 0;         // a rank's process ends; ranks that send to it are told
  int freeze = 0;       // a rank's process is suspended; its links fall silent
  int thaw = 0;         // a frozen process continues and finds its links closed
  int victims_max = 1;  // at most so many ranks are killed or frozen
};

class MachineWorld {
 public:
  MachineWorld(int size, unsigned seed, Trouble trouble = {}) : trouble_(trouble), random_(seed) {
    options_.progress_interval = std::chrono::milliseconds(0);
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<RankMachine>(identity_of(rank, size), options_));
      coordinators_.push_back(std::make_unique<CoordinatorMachine>(identity_of(rank, size), options_));
      finished_.emplace_back();
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  RankMachine& rank(int index) { return *ranks_[at(index)]; }
  CoordinatorMachine& coordinator(int index) { return *coordinators_[at(index)]; }

  // Tasks that fail, as (rank, name).
  std::set<std::pair<int, std::string>> failing;
  std::uint64_t content = 1;
  std::vector<std::string> sent;       // names of messages, in the order of sending
  std::vector<std::string> tasks_run;  // "rank task"
  std::string unsendable = "unsendable";  // a Join with this text cannot be sent

  void start(const CallStarted& call) {
    for (int index = 0; index < size(); ++index) start(index, call);
  }
  void start(int index, const CallStarted& call) {
    ticket_ = call.ticket;
    step_rank(index, call);
  }

  // Runs until nothing can happen any more. Returns false if that takes more than `steps_max`
  // steps.
  bool run(int steps_max = 200000) {
    for (int step = 0; step < steps_max; ++step)
      if (!happen()) return true;
    return false;
  }

  // Runs until only a deadline can change anything. Returns false if that takes more than
  // `steps_max` steps.
  bool settle(int steps_max = 200000) {
    for (int step = 0; step < steps_max; ++step)
      if (!happen(false)) return true;
    return false;
  }

  // From now on, nothing goes wrong.
  void calm() { trouble_ = {}; }

  bool run_some(int steps) {
    for (int step = 0; step < steps; ++step) happen();
    return true;
  }

  const std::vector<CallResult>& finished(int index) const { return finished_[at(index)]; }
  bool deadline_passed() const { return deadline_passed_; }
  Duration passed() const { return now_; }
  bool is_alive(int index) const { return dead_.count(index) == 0; }
  bool was_frozen(int index) const { return was_frozen_.count(index) != 0; }
  bool had_victims() const { return !dead_.empty() || !was_frozen_.empty(); }
  // Returns whether a checkpoint was published. For one save, either publication or fencing
  // succeeds, never both.
  bool has_published() const { return !published_.empty(); }
  bool is_published(const std::string& save_id) const { return published_.count(save_id) != 0; }

  void kill(int index) {
    vanish(index);
    for (int other = 0; other < size(); ++other) tell_down(other, index, FailureKind::kLost, "the connection was closed");
  }
  // Ends the rank without telling the others, as if none had a connection to it yet.
  void vanish(int index) {
    dead_.insert(index);
    forget(index);
    links_[{index, index}].clear();
    timers_.erase({index, Timer::kAnswer});
    timers_.erase({index, Timer::kCall});
    timers_.erase({index, Timer::kPhase});
    timers_.erase({index, Timer::kProbe});
    timers_.erase({index, Timer::kWaiting});
    timers_.erase({index, Timer::kSuccession});
    for (std::size_t i = pending_.size(); i-- > 0;)
      if (pending_[i].rank == index) pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void freeze(int index) {
    frozen_.insert(index);
    was_frozen_.insert(index);
    forget(index);
    for (int other = 0; other < size(); ++other) tell_down(other, index, FailureKind::kSilent, "nothing was heard");
  }
  void thaw(int index) {
    // The others close their links before the rank can open new ones.
    for (std::size_t i = 0; i < news_.size();) {
      if (news_[i].second.rank != index || frozen_.count(news_[i].first) != 0)
        ++i;
      else
        hear_news(i);
    }
    frozen_.erase(index);
    forget(index);
    for (int other = 0; other < size(); ++other)
      tell_down(index, other, FailureKind::kLost, "it closed the link: nothing was heard", false, true);
  }
  // Drops everything between the two ranks from now on, in both directions.
  void separate(int a, int b) {
    severed_.insert(std::minmax(a, b));
    links_[{a, b}].clear();
    links_[{b, a}].clear();
    tell_down(a, b, FailureKind::kSilent, "nothing was heard");
    tell_down(b, a, FailureKind::kSilent, "nothing was heard");
  }
  // Lets no connection open between the two ranks, in either direction.
  void block(int a, int b) { blocked_.insert(std::minmax(a, b)); }
  const std::set<int>& cancelled_calls() const { return cancelled_calls_; }  // the ranks whose callers cancelled

 private:
  struct Parcel {
    std::uint64_t counter;
    Message body;
  };
  struct Pending {
    int rank;
    bool for_coordinator;
    RunTask run;
  };
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  bool chance(int percent) { return percent > 0 && static_cast<int>(random_() % 100) < percent; }

  bool happen(bool with_deadlines = true) {
    if (chance(trouble_.cancel_call)) cancel_call(static_cast<int>(random_() % at(size())));

    if (static_cast<int>(dead_.size() + was_frozen_.size()) < trouble_.victims_max) {
      const int victim = static_cast<int>(random_() % at(size()));
      if (chance(trouble_.kill) && is_alive(victim)) kill(victim);
      if (chance(trouble_.freeze) && is_alive(victim) && frozen_.count(victim) == 0) freeze(victim);
    }
    if (!frozen_.empty() && chance(trouble_.thaw)) thaw(*frozen_.begin());

    std::vector<std::pair<int, int>> links;
    for (const auto& [link, parcels] : links_)
      if (!parcels.empty() && frozen_.count(link.second) == 0) links.push_back(link);
    std::vector<std::size_t> tasks;
    for (std::size_t i = 0; i < pending_.size(); ++i)
      if (frozen_.count(pending_[i].rank) == 0) tasks.push_back(i);
    std::vector<std::size_t> news;
    for (std::size_t i = 0; i < news_.size(); ++i)
      if (frozen_.count(news_[i].first) == 0) news.push_back(i);
    const std::size_t choices = links.size() + tasks.size() + news.size();
    if (choices == 0) return with_deadlines && pass_deadline();
    const std::size_t choice = random_() % choices;
    if (choice < links.size())
      deliver(links[choice]);
    else if (choice < links.size() + tasks.size())
      end_task(tasks[choice - links.size()]);
    else
      hear_news(news[choice - links.size() - tasks.size()]);
    return true;
  }

  // Drops the messages in flight between this rank and others, and the link news that it has not
  // heard.
  void forget(int index) {
    for (auto& [link, parcels] : links_)
      if (link.first != link.second && (link.first == index || link.second == index)) parcels.clear();
    for (std::size_t i = news_.size(); i-- > 0;)
      if (news_[i].first == index) news_.erase(news_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // The news that `there` is down. Messages sent before still in flight may be dropped.
  void tell_down(int here, int there, FailureKind kind, const std::string& why, bool unopened = false, bool gave_up = false) {
    if (here == there || !is_alive(here)) return;
    PeerDown down;
    down.rank = there;
    down.kind = kind;
    down.unopened = unopened;
    down.gave_up = gave_up;
    down.why = why;
    news_.emplace_back(here, down);
  }

  void hear_news(std::size_t which) {
    const auto [index, down] = news_[which];
    news_.erase(news_.begin() + static_cast<std::ptrdiff_t>(which));
    step_coordinator(index, down);
    step_rank(index, down);
  }

  void deliver(std::pair<int, int> link) {
    auto& parcels = links_[link];
    const Parcel parcel = parcels.front();
    if (!chance(trouble_.duplicate)) parcels.pop_front();
    const Received received{link.first, parcel.counter, parcel.body};
    if (is_for_coordinator(parcel.body))
      step_coordinator(link.second, received);
    else
      step_rank(link.second, received);
  }

  void end_task(std::size_t which) {
    const Pending pending = pending_[which];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
    const RunTask& run = pending.run;
    TaskEnded done{run.sequence, answer_to(run, pending.rank, content)};
    const bool is_finish = std::holds_alternative<Finish>(run.task);
    Failure failure;
    failure.rank = pending.rank;
    failure.phase = run.phase;
    failure.what = name_of(run.task);
    if (failing.count({pending.rank, name_of(run.task)}) != 0) {
      done.result = failure;
    } else if (is_finish && fenced_.count(run.save_id) != 0) {
      failure.code = ErrorCode::kFenced;
      done.result = failure;
    } else if (std::holds_alternative<AskCommitted>(run.task)) {
      fenced_.insert(run.save_id);
      done.result = is_published(run.save_id) ? Committed::kYes : Committed::kNo;
    } else if (is_finish) {
      published_.insert(run.save_id);
    } else if (told_to_stop_.count(pending.rank) != 0 && run.phase != Phase::kFinish && chance(50) &&
               (std::holds_alternative<CreateLocalPlan>(run.task) || std::holds_alternative<Write>(run.task) ||
                std::holds_alternative<Read>(run.task))) {
      done.result = Stopped{};
    }
    if (pending.for_coordinator)
      step_coordinator(pending.rank, done);
    else
      step_rank(pending.rank, done);
  }

  bool pass_deadline() {
    auto next = timers_.end();
    for (auto it = timers_.begin(); it != timers_.end(); ++it)
      if (frozen_.count(it->first.first) == 0 && (next == timers_.end() || it->second < next->second)) next = it;
    if (next == timers_.end()) {
      if (frozen_.empty()) return false;
      thaw(*frozen_.begin());
      return true;
    }
    const auto [rank, timer] = next->first;
    now_ = std::max(now_, next->second);
    timers_.erase(next);
    deadline_passed_ = deadline_passed_ || timer != Timer::kWaiting;
    if (timer == Timer::kPhase || timer == Timer::kProbe || timer == Timer::kSuccession || timer == Timer::kWaiting)
      step_coordinator(rank, TimerFired{timer});
    else
      step_rank(rank, TimerFired{timer});
    return true;
  }

  void cancel_call(int index) {
    if (!is_alive(index) || frozen_.count(index) != 0 || rank(index).is_idle()) return;
    cancelled_calls_.insert(index);
    step_rank(index, CancelRequested{ticket_, "a test"});
  }

  void transmit(int from, const Send& send) {
    const auto* const join = std::get_if<Join>(&send.body);
    if (join != nullptr && join->text == unsendable) {
      PeerDown down;
      down.rank = send.to;
      down.reachable = true;
      down.code = ErrorCode::kInvalidArgument;
      down.why = "Join cannot be sent";
      news_.emplace_back(from, down);
      return;
    }
    if (!is_alive(send.to)) return tell_down(from, send.to, FailureKind::kLost, "nobody listens there any more");
    if (blocked_.count(std::minmax(from, send.to)) != 0)
      return tell_down(from, send.to, FailureKind::kLost, "no route to host", true);
    if (frozen_.count(send.to) != 0 || severed_.count(std::minmax(from, send.to)) != 0) return;
    links_[{from, send.to}].push_back({send.counter, send.body});
  }

  void step_rank(int index, const Event& event) { perform(index, false, rank(index).step(event)); }
  void step_coordinator(int index, const Event& event) { perform(index, true, coordinator(index).step(event)); }

  void perform(int index, bool for_coordinator, Effects effects) {
    for (auto& effect : effects) {
      if (auto* send = std::get_if<Send>(&effect)) {
        sent.push_back(name_of(send->body));
        transmit(index, *send);
      } else if (auto* run = std::get_if<RunTask>(&effect)) {
        tasks_run.push_back(std::to_string(index) + " " + name_of(run->task));
        // As the supervisor does: refuses the coordinator's task if the call that owns its objects
        // has ended.
        const bool refused =
            for_coordinator && (rank(index).is_idle() || rank(index).state() == RankMachine::State::kEnding ||
                                (!std::holds_alternative<Decide>(run->task) && rank(index).counter() != run->counter));
        if (refused) {
          Failure failure;
          failure.rank = index;
          failure.phase = run->phase;
          failure.kind = FailureKind::kCancelled;
          perform(index, true, coordinator(index).step(TaskEnded{run->sequence, failure}));
          continue;
        }
        pending_.push_back({index, for_coordinator, std::move(*run)});
      } else if (std::holds_alternative<StopTasks>(effect)) {
        told_to_stop_.insert(index);
      } else if (const auto* start = std::get_if<StartTimer>(&effect)) {
        timers_[{index, start->timer}] = now_ + start->after;
      } else if (const auto* stop = std::get_if<StopTimer>(&effect)) {
        timers_.erase({index, stop->timer});
      } else if (const auto* finished = std::get_if<CallResult>(&effect)) {
        // No task of the rank may run when its call has ended. A coordinator's task may still be
        // pending, because the executor queues it behind the release.
        for (const auto& pending : pending_) CHECK_FALSE((pending.rank == index && !pending.for_coordinator));
        told_to_stop_.erase(index);
        finished_[at(index)].push_back(*finished);
      }
    }
  }

  RuntimeOptions options_;
  Trouble trouble_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<RankMachine>> ranks_;
  std::vector<std::unique_ptr<CoordinatorMachine>> coordinators_;
  std::map<std::pair<int, int>, std::deque<Parcel>> links_;  // from, to
  std::vector<Pending> pending_;
  std::set<int> told_to_stop_;  // ranks
  std::map<std::pair<int, Timer>, Duration> timers_;
  Duration now_{0};
  std::vector<std::vector<CallResult>> finished_;
  std::vector<std::pair<int, PeerDown>> news_;  // the first is the rank to tell
  std::set<int> dead_;
  std::set<int> frozen_;
  std::set<int> was_frozen_;
  std::set<std::pair<int, int>> severed_;  // smaller rank first
  std::set<std::pair<int, int>> blocked_;  // the same
  std::set<std::string> published_;
  std::set<std::string> fenced_;
  bool deadline_passed_ = false;
  std::set<int> cancelled_calls_;
  std::uint64_t ticket_ = 0;  // of the running call
};

}  // namespace cairn::test
