#include <cairn/actors/storage_actor.hpp>

#include <utility>

#include <cairn/actors/call_context.hpp>
#include <cairn/base/error.hpp>

namespace cairn {
namespace {

using protocol::Hook;

std::uint64_t bytes_to_move(const TaskRun& run) {
  const auto& progress = run.context().call().progress;
  return progress ? progress->seen().own.bytes : 0;
}

// --- the data, on every rank ---------------------------------------------------------------------

std::nullopt_t run_storage_task(TaskRun& run, const protocol::Write& request) {
  SaveHooks& hooks = *run.context().save().hooks;
  const SavePlan& plan =
      run.context().save_plan.emplace(run.hook(Hook::kFinishPlan, [&] { return hooks.finish_plan(*request.plan); }));
  return run.last_hook(
      Hook::kMoveData, bytes_to_move(run), [&] { return hooks.write_data(plan); },
      [](WriteResults results) { return protocol::Written{std::make_shared<const WriteResults>(std::move(results))}; });
}

std::nullopt_t run_storage_task(TaskRun& run, const protocol::Read& request) {
  LoadHooks& hooks = *run.context().load().hooks;
  std::optional<LoadPlan> kept = std::exchange(run.context().load_plan, std::nullopt);
  if (kept.has_value() == (request.plan != nullptr))
    throw InternalError(kept ? "the coordinator sent a plan, but this rank has kept its own"
                             : "the coordinator sent no plan, but this rank has kept none");
  LoadPlan central = kept ? *std::move(kept) : *request.plan;
  const LoadPlan& plan =
      run.context().load_plan.emplace(run.hook(Hook::kFinishPlan, [&] { return hooks.finish_plan(std::move(central)); }));
  return run.last_hook(
      Hook::kMoveData, bytes_to_move(run), [&] { return hooks.read_data(plan); }, [](bool) { return protocol::ReadDone{}; });
}

// --- publication, on the coordinator -------------------------------------------------------------

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::Finish& request) {
  run.hook(Hook::kFinish, [&] { run.context().save().hooks->finish(std::move(*request.metadata), std::move(*request.results)); });
  return protocol::Published{};
}

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::AskCommitted&) {
  return run.hook(Hook::kAskCommitted, [&] { return run.context().save().hooks->committed(run.task().save_id); });
}

// --- after a failure, on every rank --------------------------------------------------------------

// Without an outcome, does nothing: other ranks may still publish the files of this rank.
void discard_if_told(TaskRun& run, std::optional<Committed> committed) {
  if (run.context().operation() != protocol::Operation::kSave) return;
  const bool ends_attempt = run.task().is_coordinator;
  if (committed && (*committed == Committed::kNo || ends_attempt)) run.context().save().hooks->discard(ends_attempt);
}

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::Abandon& request) {
  run.hook(Hook::kAbandon, [&] {
    if (run.context().operation() == protocol::Operation::kLoad) return run.context().load().hooks->abandon();
    run.context().save().hooks->abandon();
    discard_if_told(run, request.committed);
  });
  return protocol::Released{};
}

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::Release& request) {
  run.hook(Hook::kRelease, [&] { discard_if_told(run, request.committed); });
  return protocol::Released{};
}

template <class Other>
protocol::TaskResult run_storage_task(TaskRun&, const Other&) {
  throw InternalError("the storage actor got a task that is not its own");
}

}  // namespace

TaskActor::behavior_type storage_actor(TaskActor::pointer self, std::shared_ptr<Tracer> tracer) {
  return task_actor(self, std::move(tracer), Actor::kStorage, [](TaskRun& run) {
    const auto body = [&](const auto& task) { return std::optional<protocol::TaskResult>(run_storage_task(run, task)); };
    return std::visit(body, run.task().task);
  });
}

}  // namespace cairn
