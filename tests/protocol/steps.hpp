// Drives one machine, one event at a time, and returns its effects.
#pragma once

#include <cairn/tests/support/plain.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/tests/support/failure_maps.hpp>

namespace cairn::test {

using namespace cairn::protocol;
using testing::ranks_of;

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
    const auto all = std::make_shared<KeptGlobalPlans>(KeptGlobalPlans{save->of, save->local_plans, {}});
    for (const auto& plan : all->plans) all->parts.push_back(std::make_shared<const PlanPart>(*part_of_plan(*plan, *plan)));
    return GlobalSavePlans{all, std::make_shared<Metadata>()};
  }
  if (const auto* load = std::get_if<CreateGlobalLoadPlan>(&run.task)) return GlobalLoadPlans{load->local_plans};
  if (std::holds_alternative<Write>(run.task)) {
    auto results = std::make_shared<WriteResults>();
    results->files.push_back({"file " + std::to_string(rank), 1, 2, 1, {}, {}});
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

// An Outcome with its failures by rank.
struct Told {
  std::uint64_t ticket = 0;
  FailureMap failures;
  Committed committed = Committed::kNo;
  std::string save_id;
  std::string answer;

  Told(std::uint64_t its_ticket, FailureMap its_failures, Committed its_committed, std::string its_save_id)
      : ticket(its_ticket), failures(std::move(its_failures)), committed(its_committed), save_id(std::move(its_save_id)) {}
  Told(const Outcome& outcome)
      : Told(outcome.ticket, ungrouped(outcome.ending->failures), outcome.ending->committed, outcome.ending->save_id) {
    answer = outcome.ending->answer;
  }

  std::shared_ptr<const Ending> ending() const { return make_ending(failures, committed, save_id, answer); }
  operator Outcome() const { return {ticket, ending()}; }
};

// Returns the messages of type T among the effects, each with its receiver.
template <class T>
auto sent(const Effects& effects) {
  std::vector<std::pair<int, std::conditional_t<std::is_same_v<T, Outcome>, Told, T>>> found;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<Send>(&effect);
    if (send == nullptr) continue;
    if (const auto* body = std::get_if<T>(&send->body)) found.emplace_back(send->to, *body);
  }
  return found;
}

// Returns the only message of type T among the effects, which `to` receives if it is given.
template <class T>
auto only(const Effects& effects, std::optional<int> to = std::nullopt) {
  const auto found = sent<T>(effects);
  REQUIRE(found.size() == 1);
  if (to) CHECK(found[0].first == *to);
  return found[0].second;
}

template <class T>
std::vector<T> all_of(const Effects& effects) {
  std::vector<T> found;
  for (const auto& effect : effects)
    if (const auto* it = std::get_if<T>(&effect)) found.push_back(*it);
  return found;
}

inline bool was_ignored(const Effects& effects) {
  return !effects.empty() && std::holds_alternative<InputIgnored>(effects.back()) &&
         std::all_of(effects.begin(), effects.end(), [](const Effect& effect) {
           return std::holds_alternative<InputIgnored>(effect) || std::holds_alternative<StateChanged>(effect);
         });
}

inline Join join_of(std::uint64_t ticket, Operation operation = Operation::kSave, int coordinator = 0, int world_size = 2) {
  Join join;
  join.ticket = join.ordinal = ticket;
  join.operation = operation;
  join.checkpoint_id = "step_1";
  join.world_size = static_cast<std::uint32_t>(world_size);
  join.coordinator_rank = coordinator;
  return join;
}

inline StatusRequest ask_of(std::uint64_t inquiry, std::uint64_t ordinal = 1) {
  return {{ordinal, Operation::kSave, "step_1"}, inquiry, 0};
}

inline Failure failure_on(int rank, std::string what, ErrorCode code = ErrorCode::kUnavailable) {
  Failure failure;
  failure.rank = rank;
  failure.phase = Phase::kWrite;
  failure.code = code;
  failure.what = std::move(what);
  failure.actor = "storage";
  return failure;
}

// A coordinator of a world, event by event. Tasks end as those of a well-behaved planner and writer
// do.
class CoordinatorSteps {
 public:
  explicit CoordinatorSteps(int world_size, int rank = 0, RuntimeOptions options = {})
      : world_size_(world_size), rank_(rank), machine_(identity_of(rank, world_size), options) {}

  Effects step(const Event& event) { return machine_.step(event); }
  Effects receive(int from, Message body, std::uint64_t counter) { return step(Received{from, counter, std::move(body)}); }
  Effects receive(int from, Message body) { return receive(from, std::move(body), machine_.counter()); }
  // Ends the task in `effects`, and each task that follows from its end.
  Effects run_tasks(Effects effects) {
    for (;;) {
      const auto tasks = all_of<RunTask>(effects);
      if (tasks.empty()) return effects;
      effects = step(TaskEnded{tasks.back().sequence, answer_to(tasks.back(), rank_)});
    }
  }
  // Lets all ranks join with this ticket.
  Effects join(std::uint64_t ticket, Operation operation = Operation::kSave) {
    Effects effects;
    for (int rank = 0; rank < world_size_; ++rank) effects = receive(rank, join_of(ticket, operation, rank_, world_size_), 0);
    return effects;
  }
  // Joins, then plans, so that data moves.
  Effects plan(std::uint64_t ticket) {
    join(ticket);
    Effects effects;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto local = plan_of(rank);
      effects = receive(rank, LocalSavePlan{local, plan_digest(*local)});
    }
    return run_tasks(std::move(effects));
  }
  // Plans, then reports all data as written. Returns the task that publishes, still running.
  RunTask finish(std::uint64_t ticket) {
    plan(ticket);
    Effects effects;
    for (int rank = 0; rank < world_size_; ++rank) effects = written(rank);
    return all_of<RunTask>(effects).at(0);
  }
  Effects written(int rank) { return receive(rank, Written{std::make_shared<WriteResults>()}); }

  CoordinatorMachine& machine() { return machine_; }

 private:
  const int world_size_;
  const int rank_;
  CoordinatorMachine machine_;
};

// A rank that does not coordinate, event by event.
class RankSteps {
 public:
  explicit RankSteps(int rank = 1, int world_size = 2, RuntimeOptions options = {})
      : rank_(rank), machine_(identity_of(rank, world_size), options) {}

  Effects step(const Event& event) { return machine_.step(event); }
  Effects receive(int from, Message body, std::uint64_t counter) { return step(Received{from, counter, std::move(body)}); }
  Effects receive(Message body) { return receive(0, std::move(body), machine_.counter()); }
  // Ends tasks until none follows.
  Effects run_tasks(Effects effects) {
    for (;;) {
      const auto tasks = all_of<RunTask>(effects);
      if (tasks.empty()) return effects;
      effects = done(tasks.back());
    }
  }
  Effects done(const RunTask& task) { return step(TaskEnded{task.sequence, answer_to(task, rank_)}); }
  // Runs the rank up to its local plan.
  Effects plan(std::uint64_t ticket, std::uint64_t counter = 1) {
    step(call_of(ticket));
    return run_tasks(receive(0, Begin{ticket, {}}, counter));
  }
  // Runs the rank up to its Write. Returns that task, still running.
  RunTask move(std::uint64_t ticket, std::uint64_t counter = 1) {
    plan(ticket, counter);
    return all_of<RunTask>(receive(protocol::GlobalSavePlan{plan_of(rank_), nullptr})).at(0);
  }

  RankMachine& machine() { return machine_; }

 private:
  const int rank_;
  RankMachine machine_;
};

inline PeerDown lost(int rank, std::string why = "gone") {
  PeerDown down;
  down.rank = rank;
  down.why = std::move(why);
  return down;
}

// `rank` gave up on this one, which stood still.
inline PeerDown gave_up(int rank) {
  PeerDown down = lost(rank, "rank " + std::to_string(rank) + " closed the link: nothing was heard of this rank");
  down.gave_up = true;
  return down;
}

inline PeerDown silent(int rank) {
  PeerDown down = lost(rank, "nothing was heard");
  down.kind = FailureKind::kSilent;
  down.code = ErrorCode::kDeadline;
  return down;
}

inline PeerDown unreadable(int rank) {
  PeerDown down = lost(rank, "it sent a message that cannot be read");
  down.reachable = true;
  down.code = ErrorCode::kCorrupt;
  return down;
}

}  // namespace cairn::test
