// Ranks and coordinators as bare machines, and a seeded scheduler that decides what happens next: a message arrives, arrives twice or out
// of turn, a hook ends, a link breaks, and, when nothing else can happen, a deadline passes.
#pragma once

#include <cairn/tests/support/plain.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>

namespace cairn::test {

using namespace cairn::protocol;

inline const char* const kIncarnation = "0123456789abcdef0123456789abcdef";

inline Identity identity_of(int rank, int world_size) { return {rank, world_size, kIncarnation, "main"}; }

inline std::shared_ptr<SavePlan> plan_of(int rank, int version = 0, std::uint64_t content = 1) {
  auto plan = std::make_shared<SavePlan>();
  WriteItem tensor;
  tensor.name = plan->names.intern("weight." + std::to_string(version));
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

// What a well-behaved planner, writer or reader would answer to a hook.
inline HookValue answer_to(const RunHook& hook, int rank, int world_size, int version = 0, std::uint64_t content = 1) {
  const bool save = hook.operation == Operation::kSave;
  switch (hook.hook) {
    case Hook::kReadMetadata:
      return std::string("seen");
    case Hook::kCreateLocalPlan:
      if (save) return plan_of(rank, version, content);
      return std::make_shared<LoadPlan>();
    case Hook::kCreateGlobalPlan:
      if (save) {
        auto plan = std::make_shared<cairn::GlobalSavePlan>();
        plan->plans = *std::get<std::shared_ptr<std::vector<SavePlan>>>(hook.argument);
        return plan;
      }
      return hook.argument;
    case Hook::kPrepareLocalPlan:
    case Hook::kPrepareGlobalPlan:
    case Hook::kFinishPlan:
      return hook.argument;
    case Hook::kMoveData: {
      if (!save) return {};
      auto results = std::make_shared<WriteResults>();
      results->files.push_back({"file " + std::to_string(rank), 1, 2, 1, {}});
      return results;
    }
    case Hook::kAskCommitted:
      return Committed::kNo;
    default:
      return {};
  }
}

// What may go wrong, each with a chance in a hundred per step.
struct Trouble {
  int duplicate = 0;
  int reorder = 0;  // a message overtakes others of its link
  int cut = 0;      // a link breaks: what is under way is lost, both ends hear of it
  int cancel = 0;   // a rank's runtime is shut down
  int actor_dies = 0;
};

class MachineWorld {
 public:
  MachineWorld(int size, unsigned seed, Trouble trouble = {}) : trouble_(trouble), random_(seed) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<RankMachine>(identity_of(rank, size), options_));
      coordinators_.push_back(std::make_unique<CoordinatorMachine>(identity_of(rank, size), options_));
      finished_.emplace_back();
      running_.push_back(0);
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  RankMachine& rank(int index) { return *ranks_[at(index)]; }
  CoordinatorMachine& coordinator(int index) { return *coordinators_[at(index)]; }

  // Hooks that fail, as (rank, hook).
  std::set<std::pair<int, Hook>> failing;
  int version = 0;
  std::uint64_t content = 1;
  std::vector<std::string> sent;       // names of messages, in the order of sending
  std::vector<std::string> hooks_run;  // "rank hook"

  void start(const CallStarted& call) {
    for (int index = 0; index < size(); ++index) start(index, call);
  }
  void start(int index, const CallStarted& call) { step_rank(index, call); }

  // Until nothing can happen any more. Returns false when that takes suspiciously long.
  bool run(int steps_max = 200000) {
    for (int step = 0; step < steps_max; ++step)
      if (!happen()) return true;
    return false;
  }

  const std::vector<Finished>& finished(int index) const { return finished_[at(index)]; }
  bool was_cut() const { return was_cut_; }
  bool deadline_passed() const { return deadline_passed_; }
  const std::set<int>& cancelled() const { return cancelled_; }

 private:
  struct Parcel {
    std::uint64_t counter;
    Message body;
  };
  struct Pending {
    int rank;
    bool for_coordinator;
    RunHook hook;
  };
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  bool chance(int percent) { return percent > 0 && static_cast<int>(random_() % 100) < percent; }

  bool happen() {
    if (chance(trouble_.cut)) cut();
    if (chance(trouble_.cancel) && cancelled_.empty()) cancel(static_cast<int>(random_() % at(size())));
    if (chance(trouble_.actor_dies)) step_rank(static_cast<int>(random_() % at(size())), ActorDied{"storage", "a test"});

    std::vector<std::pair<int, int>> links;
    for (const auto& [link, parcels] : links_)
      if (!parcels.empty()) links.push_back(link);
    const std::size_t choices = links.size() + pending_.size();
    if (choices == 0) return pass_deadline();
    const std::size_t choice = random_() % choices;
    if (choice < links.size())
      deliver(links[choice]);
    else
      end_hook(choice - links.size());
    return true;
  }

  void deliver(std::pair<int, int> link) {
    auto& parcels = links_[link];
    std::size_t which = chance(trouble_.reorder) ? random_() % parcels.size() : 0;
    const Parcel parcel = parcels[which];
    if (!chance(trouble_.duplicate)) parcels.erase(parcels.begin() + static_cast<std::ptrdiff_t>(which));
    const Received received{link.first, parcel.counter, parcel.body};
    if (is_for_coordinator(parcel.body))
      step_coordinator(link.second, received);
    else
      step_rank(link.second, received);
  }

  void end_hook(std::size_t which) {
    const Pending pending = pending_[which];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
    --running_[at(pending.rank)];
    HookDone done;
    done.sequence = pending.hook.sequence;
    if (failing.count({pending.rank, pending.hook.hook}) != 0) {
      Failure failure;
      failure.rank = pending.rank;
      failure.phase = pending.hook.phase;
      failure.what = name_of(pending.hook.hook, pending.hook.operation);
      done.result = failure;
    } else {
      done.result = answer_to(pending.hook, pending.rank, size(), version, content);
    }
    if (pending.for_coordinator)
      step_coordinator(pending.rank, done);
    else
      step_rank(pending.rank, done);
  }

  bool pass_deadline() {
    if (timers_.empty()) return false;
    const auto next =
        std::min_element(timers_.begin(), timers_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto [rank, timer] = next->first;
    now_ = next->second;
    timers_.erase(next);
    deadline_passed_ = true;
    if (timer == Timer::kPhase)
      step_coordinator(rank, TimerFired{timer});
    else
      step_rank(rank, TimerFired{timer});
    return true;
  }

  void cut() {
    const int a = static_cast<int>(random_() % at(size()));
    const int b = static_cast<int>(random_() % at(size()));
    if (a == b) return;
    was_cut_ = true;
    links_[{a, b}].clear();
    links_[{b, a}].clear();
    for (const auto& [here, there] : {std::pair(a, b), std::pair(b, a)}) {
      PeerDown down;
      down.rank = there;
      down.why = "cut";
      step_coordinator(here, down);
      step_rank(here, down);
    }
  }

  void cancel(int index) {
    cancelled_.insert(index);
    step_coordinator(index, Cancelled{"a test"});
    if (rank(index).coordinator_rank() != index) step_rank(index, Cancelled{"a test"});
  }

  void step_rank(int index, const Event& event) { perform(index, false, rank(index).step(event)); }
  void step_coordinator(int index, const Event& event) { perform(index, true, coordinator(index).step(event)); }

  void perform(int index, bool for_coordinator, Effects effects) {
    for (auto& effect : effects) {
      if (auto* send = std::get_if<Send>(&effect)) {
        sent.push_back(name_of(send->body));
        links_[{index, send->to}].push_back({send->counter, send->body});
      } else if (auto* hook = std::get_if<RunHook>(&effect)) {
        hooks_run.push_back(std::to_string(index) + " " + name_of(hook->hook, hook->operation));
        // As the supervisor does: the call whose objects the coordinator's hook needs has ended.
        const bool refused = for_coordinator && (rank(index).is_idle() || rank(index).state() == RankMachine::State::kEnding ||
                                                 rank(index).counter() != hook->counter);
        if (refused) {
          Failure failure;
          failure.rank = index;
          failure.phase = hook->phase;
          failure.kind = FailureKind::kCancelled;
          perform(index, true, coordinator(index).step(HookDone{hook->sequence, failure}));
          continue;
        }
        ++running_[at(index)];
        pending_.push_back({index, for_coordinator, std::move(*hook)});
      } else if (const auto* start = std::get_if<StartTimer>(&effect)) {
        timers_[{index, start->timer}] = now_ + start->after;
      } else if (const auto* stop = std::get_if<StopTimer>(&effect)) {
        timers_.erase({index, stop->timer});
      } else if (const auto* finished = std::get_if<Finished>(&effect)) {
        // No hook may run when a call has ended; a coordinator's that hangs is behind the release on the executor.
        for (const auto& pending : pending_) CHECK_FALSE((pending.rank == index && !pending.for_coordinator));
        finished_[at(index)].push_back(*finished);
      }
    }
  }

  RuntimeOptions options_;
  const Trouble trouble_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<RankMachine>> ranks_;
  std::vector<std::unique_ptr<CoordinatorMachine>> coordinators_;
  std::map<std::pair<int, int>, std::deque<Parcel>> links_;  // from, to
  std::vector<Pending> pending_;
  std::vector<int> running_;
  std::map<std::pair<int, Timer>, Duration> timers_;
  Duration now_{0};
  std::vector<std::vector<Finished>> finished_;
  bool was_cut_ = false;
  bool deadline_passed_ = false;
  std::set<int> cancelled_;
};

inline bool same(const Finished& a, const Finished& b) {
  return a.failures == b.failures && a.committed == b.committed && a.save_id == b.save_id;
}

}  // namespace cairn::test
