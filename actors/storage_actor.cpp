#include <cairn/actors/storage_actor.hpp>

#include <utility>

#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/task_run.hpp>

namespace cairn {
namespace {

using protocol::Hook;

std::uint64_t bytes_to_move(const TaskRun& run) {
  const auto& progress = run.context().call().progress;
  return progress ? progress->seen().own.bytes : 0;
}

// --- the data, on every rank ---------------------------------------------------------------------

void run_storage_task(TaskRun& run, const protocol::Write& request) {
  const SaveCall& call = run.context().save();
  const SavePlan& plan = run.context().save_plan.emplace(
      run.hook(Hook::kFinishPlan, [&] { return call.planner->finish_plan(*request.plan); }));
  run.last_hook(
      Hook::kMoveData, bytes_to_move(run), [&] { return call.writer->write_data(plan, *call.planner); },
      [](WriteResults results) { return protocol::Written{std::make_shared<const WriteResults>(std::move(results))}; });
}

void run_storage_task(TaskRun& run, const protocol::Read& request) {
  const LoadCall& call = run.context().load();
  const LoadPlan& plan = run.context().load_plan.emplace(
      run.hook(Hook::kFinishPlan, [&] { return call.planner->finish_plan(*request.plan); }));
  run.last_hook(
      Hook::kMoveData, bytes_to_move(run), [&] { return call.reader->read_data(plan, *call.planner); },
      [](bool) { return protocol::ReadDone{}; });
}

// --- publication, on the coordinator -------------------------------------------------------------

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::Finish& request) {
  run.hook(Hook::kFinish,
           [&] { run.context().save().writer->finish(std::move(*request.metadata), std::move(*request.results)); });
  return protocol::Published{};
}

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::AskCommitted&) {
  return run.hook(Hook::kAskCommitted, [&] { return run.context().save().writer->committed(run.save_id()); });
}

// --- after a failure, on every rank --------------------------------------------------------------

// Without an outcome, does nothing: other ranks may still publish the files of this rank.
void discard_if_told(TaskRun& run, std::optional<Committed> committed) {
  if (run.context().operation() != protocol::Operation::kSave) return;
  const bool ends_attempt = run.is_coordinator();
  if (committed && (*committed == Committed::kNo || ends_attempt)) run.context().save().writer->discard(ends_attempt);
}

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::Abandon& request) {
  run.hook(Hook::kAbandon, [&] {
    run.context().save().writer->abandon();
    discard_if_told(run, request.committed);
  });
  return protocol::Released{};
}

protocol::TaskResult run_storage_task(TaskRun& run, const protocol::Release& request) {
  run.hook(Hook::kRelease, [&] { discard_if_told(run, request.committed); });
  return protocol::Released{};
}

}  // namespace

StorageActor::behavior_type storage_actor(StorageActor::pointer self, std::shared_ptr<Tracer> tracer) {
  self->set_exception_handler(exit_reason_of);
  const auto tap = std::make_shared<Tap>(std::move(tracer), Actor::kStorage);
  const auto run = [tap](const auto& message) {
    tap->handle(message, [&] {
      message.value.run->post([task = message.value.task](TaskRun& task_run) { return run_storage_task(task_run, task); });
    });
  };
  return {
      [run](const Traced<Request<protocol::Write>>& message) { run(message); },
      [run](const Traced<Request<protocol::Read>>& message) { run(message); },
      [run](const Traced<Request<protocol::Finish>>& message) { run(message); },
      [run](const Traced<Request<protocol::AskCommitted>>& message) { run(message); },
      [run](const Traced<Request<protocol::Abandon>>& message) { run(message); },
      [run](const Traced<Request<protocol::Release>>& message) { run(message); },
  };
}

}  // namespace cairn
