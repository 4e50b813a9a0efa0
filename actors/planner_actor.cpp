#include <cairn/actors/planner_actor.hpp>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <cairn/actors/call_context.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/parallel.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/planning/disagreement.hpp>
#include <cairn/planning/read_once.hpp>

namespace cairn {
namespace {

using protocol::Hook;

[[noreturn]] void refuse_item(const char* hook, std::size_t item, const char* what) {
  throw Error(ErrorCode::kInvalidArgument,
              "the plan that " + std::string(hook) + " returned is not usable: item " + std::to_string(item) + " " + what);
}

void check_extents(const char* hook, std::size_t item, std::initializer_list<const Extents*> all) {
  constexpr std::size_t kDimsMax = 64;  // PyTorch's limit
  for (const Extents* one : all) {
    if (one->size() > kDimsMax) refuse_item(hook, item, "has more than 64 dimensions");
    if (one->size() != (*all.begin())->size())
      refuse_item(hook, item, "differs in dimensions between its offsets, its lengths and its tensor's size");
    if (std::any_of(one->begin(), one->end(), [](std::int64_t value) { return value < 0; }))
      refuse_item(hook, item, "has a negative size, offset or length");
  }
}

// Throw kInvalidArgument if the plan is not consistent: names that exist, dimensions that agree.
void check_plan(const SavePlan& plan, const char* hook) {
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const WriteItem& item = plan.items[i];
    if (item.name >= plan.names.size()) refuse_item(hook, i, "refers to a name that is not in the plan's table");
    if (item.type < WriteItemType::kByteIO || item.type > WriteItemType::kShard) refuse_item(hook, i, "has an unknown type");
    if (item.type != WriteItemType::kByteIO) check_extents(hook, i, {&item.size, &item.chunk.offsets, &item.chunk.sizes});
  }
  for (const auto& [name, path] : *plan.mappings)
    if (name >= plan.names.size())
      refuse_item(hook, plan.items.size(), "(a mapping) refers to a name that is not in the plan's table");
}
void check_plan(const LoadPlan& plan, const char* hook) {
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const ReadItem& item = plan.items[i];
    if (item.dest_name >= plan.names.size() || item.storage_name >= plan.names.size())
      refuse_item(hook, i, "refers to a name that is not in the plan's table");
    if (item.type < LoadItemType::kByteIO || item.type > LoadItemType::kTensor) refuse_item(hook, i, "has an unknown type");
    const auto all = {&item.lengths, &item.dest_chunk_offset, &item.dest_offsets, &item.storage_chunk_offset,
                      &item.storage_offsets};
    if (item.type == LoadItemType::kTensor) check_extents(hook, i, all);
    for (const Extents* one : all) check_extents(hook, i, {one});
  }
}

// Plans of users' planners, writers and readers are checked in the hook that returns them, so that
// a bad plan is that hook's failure.
template <class Plan>
Plan checked(Plan plan, const char* hook) {
  check_plan(plan, hook);
  return plan;
}

void check_count(std::size_t plans, int world_size, const char* hook) {
  if (plans == static_cast<std::size_t>(world_size)) return;
  throw Error(ErrorCode::kMismatch, std::string(hook) + " returned " + std::to_string(plans) + " plans for " +
                                        std::to_string(world_size) + " ranks; it must return one plan per rank");
}

// The planner may change its plans, while the coordinator keeps these for the next save.
template <class Plan>
std::vector<Plan> copies_of(const std::vector<std::shared_ptr<const Plan>>& plans) {
  std::vector<Plan> copies;
  copies.reserve(plans.size());
  for (const auto& plan : plans) copies.push_back(*plan);
  return copies;
}

template <class Plan>
std::vector<std::shared_ptr<const Plan>> checked_and_shared(std::vector<Plan> plans, int world_size, const char* hook) {
  check_count(plans.size(), world_size, hook);
  std::vector<std::shared_ptr<const Plan>> shared;
  shared.reserve(plans.size());
  std::size_t items = 0;
  for (auto& plan : plans) {
    items += plan.items.size();
    shared.push_back(std::make_shared<const Plan>(std::move(plan)));
  }
  for_each_in_parallel(threads_for_items(items), shared.size(), [&](std::size_t rank) { check_plan(*shared[rank], hook); });
  return shared;
}

// --- the state, on every rank --------------------------------------------------------------------

// A failed reset does not prevent the Stateful hooks, because other ranks run theirs.
protocol::TaskResult run_planner_task(TaskRun& run, const protocol::GatherState& request) {
  const CallContext& context = run.context();
  const Call& call = context.call();
  run.hook_before_others(Hook::kReset, [&] {
    if (context.operation() == protocol::Operation::kSave)
      context.save().hooks->reset(call.checkpoint_id);
    else
      context.load().hooks->reset(call.checkpoint_id);
  });
  run.hook(Hook::kBegin, [&] {
    if (call.begin) call.begin(request.key_order);
    if (call.longest_part) run.set_detail(*call.longest_part);
  });
  run.throw_if_failed();
  return protocol::StateGathered{};
}

// --- the local plan, on every rank ---------------------------------------------------------------

protocol::LocalSavePlan create_local_save_plan(TaskRun& run) {
  SaveHooks& hooks = *run.context().save().hooks;
  run.hook(Hook::kSetUpPlanner, [&] { hooks.set_up_planner(run.context().rank(), run.task().is_coordinator); });
  run.hook(Hook::kSetUpStorage, [&] { hooks.set_up_storage_writer(run.storage_context()); });
  SavePlan plan = run.hook(Hook::kCreateLocalPlan, [&] { return hooks.create_local_plan(); });
  plan =
      run.hook(Hook::kPrepareLocalPlan, [&] { return checked(hooks.prepare_local_plan(std::move(plan)), "prepare_local_plan"); });
  const Digest digest = plan_digest(plan);
  return {std::make_shared<const SavePlan>(std::move(plan)), digest};
}

protocol::LocalLoadPlan create_local_load_plan(TaskRun& run) {
  LoadHooks& hooks = *run.context().load().hooks;
  const Metadata& metadata = run.context().metadata.emplace(run.hook(Hook::kReadMetadata, [&] { return hooks.read_metadata(); }));
  run.hook(Hook::kSetUpPlanner, [&] { hooks.set_up_planner(metadata, run.storage_context()); });
  run.hook(Hook::kSetUpStorage, [&] { hooks.set_up_storage_reader(metadata, run.storage_context()); });
  LoadPlan plan = run.hook(Hook::kCreateLocalPlan, [&] { return hooks.create_local_plan(); });
  if (hooks.keeps_local_plans()) {
    run.context().load_plan = run.hook(Hook::kPrepareLocalPlan, [&] { return hooks.prepare_local_plan(std::move(plan)); });
    return {nullptr, metadata.save_id};
  }
  plan =
      run.hook(Hook::kPrepareLocalPlan, [&] { return checked(hooks.prepare_local_plan(std::move(plan)), "prepare_local_plan"); });
  return {std::make_shared<const LoadPlan>(std::move(plan)), metadata.save_id};
}

protocol::TaskResult run_planner_task(TaskRun& run, const protocol::CreateLocalPlan&) {
  if (run.context().operation() == protocol::Operation::kSave) return create_local_save_plan(run);
  return create_local_load_plan(run);
}

// --- the global plan, on the coordinator ---------------------------------------------------------

void report_difference(TaskRun& run, const std::string& difference) {
  const SaveCall& call = run.context().save();
  if (difference.empty() || call.check_replicas == CheckReplicas::kOff) return;
  if (call.check_replicas == CheckReplicas::kError)
    throw Error(ErrorCode::kMismatch, difference +
                                          ". Make the values equal, mark with per_rank what differs on purpose, or choose "
                                          "CheckReplicas::kWarn");
  run.set_detail(difference);
  write_log(LogLevel::kWarning, run.context().rank(),
            "saving '" + call.checkpoint_id + "': " + difference + ". The lowest of these ranks saves its value");
}

protocol::TaskResult run_planner_task(TaskRun& run, const protocol::CreateGlobalSavePlan& request) {
  SaveHooks& hooks = *run.context().save().hooks;
  const int world_size = run.context().world_size();
  bool repeats = false;
  GlobalSavePlan made = run.hook(Hook::kCreateGlobalPlan, [&] {
    // Values that ranks hold in common are compared in each save.
    repeats = run.context().save().check_replicas == CheckReplicas::kOff && have_equal_values(request.local_plans) &&
              hooks.repeats(to_hex(request.of), request.last ? request.last->plans : decltype(request.local_plans)());
    if (repeats) return GlobalSavePlan();
    GlobalSavePlan plan = hooks.create_global_plan(copies_of(request.local_plans));
    check_count(plan.plans.size(), world_size, "create_global_plan");
    report_difference(run, plan.differing_replicas);
    return plan;
  });
  if (repeats) return protocol::GlobalSavePlans{request.last, std::make_shared<Metadata>()};
  auto plans = run.hook(Hook::kPrepareGlobalPlan, [&] {
    return checked_and_shared(hooks.prepare_global_plan(std::move(made.plans)), world_size, "prepare_global_plan");
  });
  auto parts = parts_of_plans(request.local_plans, plans);
  return protocol::GlobalSavePlans{
      std::make_shared<const protocol::KeptGlobalPlans>(protocol::KeptGlobalPlans{request.of, std::move(plans), std::move(parts)}),
      std::make_shared<Metadata>(std::move(made.metadata))};
}

protocol::TaskResult run_planner_task(TaskRun& run, const protocol::CreateGlobalLoadPlan& request) {
  LoadHooks& hooks = *run.context().load().hooks;
  const int world_size = run.context().world_size();
  const auto& sent = request.local_plans;
  const bool are_kept = hooks.keeps_local_plans();
  for (std::size_t rank = 0; rank < sent.size(); ++rank)
    if ((sent[rank] == nullptr) != are_kept)
      throw InternalError("rank " + std::to_string(rank) +
                          (are_kept ? " sent its plan, but the coordinator keeps its own"
                                    : " keeps its plan, but the coordinator's hooks change plans"));
  std::vector<LoadPlan> made = run.hook(Hook::kCreateGlobalPlan, [&] {
    std::vector<LoadPlan> plans = hooks.create_global_plan(are_kept ? std::vector<LoadPlan>() : copies_of(sent));
    check_count(plans.size(), are_kept ? 0 : world_size, "create_global_plan");
    return plans;
  });
  return protocol::GlobalLoadPlans{run.hook(Hook::kPrepareGlobalPlan, [&] {
    auto plans = checked_and_shared(hooks.prepare_global_plan(std::move(made)), are_kept ? 0 : world_size, "prepare_global_plan");
    if (are_kept) plans = sent;
    if (world_size > 1) run.set_detail(describe_read_once(sent, plans));
    return plans;
  })};
}

// --- agreements ----------------------------------------------------------------------------------

protocol::TaskResult run_planner_task(TaskRun& run, const protocol::Decide& request) {
  const auto check = [](const char* whose, std::size_t bytes, std::size_t limit) {
    if (bytes > limit)
      throw Error(ErrorCode::kInvalidArgument, std::string(whose) + " an agreement has " + std::to_string(bytes) +
                                                   " bytes; the limit is " + std::to_string(limit));
  };
  return protocol::Answer{run.hook(Hook::kDecide, [&] {
    // The texts of other ranks were checked when they were encoded.
    check("this rank's text for", request.texts[static_cast<std::size_t>(run.context().rank())].size(),
          protocol::kAgreementTextMax);
    std::string answer = run.context().agreement().decide(request.texts);
    check("the answer of", answer.size(), protocol::kAgreementAnswerMax);
    return answer;
  })};
}

template <class Other>
protocol::TaskResult run_planner_task(TaskRun&, const Other&) {
  throw InternalError("the planner actor got a task that is not its own");
}

}  // namespace

TaskActor::behavior_type planner_actor(TaskActor::pointer self, std::shared_ptr<Tracer> tracer) {
  return task_actor(self, std::move(tracer), Actor::kPlanner, [](TaskRun& run) {
    const auto body = [&](const auto& task) { return std::optional<protocol::TaskResult>(run_planner_task(run, task)); };
    return std::visit(body, run.task().task);
  });
}

}  // namespace cairn
