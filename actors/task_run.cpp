#include <cairn/actors/task_run.hpp>

#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_events.hpp>
#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/links/links.hpp>

namespace cairn {
namespace {

using protocol::Hook;

// Whether a call that was told to stop starts no such hook. The Stateful hooks of all ranks run,
// and those of the end of an attempt.
bool is_stoppable(Hook hook) { return hook > Hook::kBegin && hook < Hook::kFinish; }

}  // namespace

TaskRun::TaskRun(std::shared_ptr<Inbox> supervisor, const Tap& asker, std::uint64_t coordinator, protocol::RunTask task,
                 std::shared_ptr<CallContext> context, std::shared_ptr<Injector> injector)
    : supervisor_(std::move(supervisor)),
      tap_(asker.tracer(), protocol::actor_of(protocol::main_hook_of(task.task))),
      coordinator_(coordinator),
      task_(std::move(task)),
      context_(std::move(context)),
      injector_(std::move(injector)),
      hook_(protocol::main_hook_of(task_.task)),
      hook_started_(tap_.tracer()->now()) {
  context_->hold();
  tap_.set_cause(asker.cause());
  tap_.set_call(context_->ticket());
}

TaskRun::~TaskRun() {
  if (!reported_) report_dropped();
  first_failure_.reset();  // its exception may refer to objects of the call
  context_->let_go();
}

void TaskRun::report_dropped() {
  const char* const actor = to_string(protocol::actor_of(hook_));
  Failure failure =
      protocol::make_failure(context_->rank(), phase(), FailureKind::kInternal, ErrorCode::kInternal, actor,
                             std::string(name_of(hook_)) + (in_hook_ ? " never ended" : " never ran") + ": the " + actor +
                                 " actor of rank " + std::to_string(context_->rank()) + " or the executor of the call dropped it");
  failure.trace_position = record_end(false, failure.what);
  end(std::move(failure));
}

void TaskRun::post(Body body) {
  context_->call().executor->post([self = shared_from_this(), body] {
    try {
      if (auto result = body(*self)) self->end(std::move(*result));
    } catch (const ToldToStop&) {
      self->end(protocol::Stopped{});
    } catch (...) {
      self->fail(std::current_exception());
    }
  });
}

void TaskRun::throw_if_failed() const {
  if (first_failure_) std::rethrow_exception(first_failure_->exception);
}

Work TaskRun::work_of(Hook hook) const { return {context_.get(), protocol::actor_of(hook), phase_of(hook), name_of(hook)}; }

ProfilerRange TaskRun::begin(Hook hook, std::uint64_t bytes) {
  if (is_stoppable(hook) && context_->is_told_to_stop()) throw ToldToStop();
  const char* const name = name_of(hook);
  ProfilerRange range(name);  // before the injected faults, so that it shows their delays
  hook_ = hook;
  in_hook_ = true;
  hook_bytes_ = bytes;
  detail_.clear();
  hook_started_ = tap_.tracer()->now();
  if (hook != Hook::kAbandon) context_->set_running_hook(name);  // a write may still run beside it
  if (hook == Hook::kRelease) return range;
  tap_.set_cause(tap_.record_as(protocol::actor_of(hook_), event_of(EventKind::kBegan)));
  if (!injector_) return range;
  const bool after_the_phases = hook == Hook::kAskCommitted || hook == Hook::kAbandon;
  const char* const phase_name = after_the_phases ? "" : to_string(phase());
  for (const auto& rule : injector_->pass_hook(name, phase_name, context_->call().id.checkpointer, task_.counter, context_->rank()))
    if (rule.action == FaultAction::kDropLink) supervisor_->post(LinkDrop{rule.peer.value_or(-1)});
  return range;
}

Failure TaskRun::failure_of(const std::exception_ptr& exception) {
  Failure failure = capture_failure(context_->rank(), phase(), to_string(protocol::actor_of(hook_)), exception);
  if (in_hook_) failure.trace_position = record_end(false, failure.what);
  return failure;
}

void TaskRun::fail(const std::exception_ptr& exception) {
  Failure failure = failure_of(exception);
  end(first_failure_ ? *first_failure_ : std::move(failure));
}

void TaskRun::end(protocol::TaskResult result) {
  reported_ = true;
  TaskReport report{context_->call().id.checkpointer, coordinator_, task_.counter, {task_.sequence, std::move(result)}};
  supervisor_->post(tap_.wrap(std::move(report)));
}

void TaskRun::refuse_future() const {
  throw Error(ErrorCode::kInvalidArgument, std::string(name_of(hook_)) +
                                               " returned a future that refers to nothing; return ready_future(...) or that of a "
                                               "promise");
}

ObservedEvent TaskRun::event_of(EventKind kind) const {
  ObservedEvent event = call_event(kind, {}, context_->call().id.checkpointer, task_.counter);
  event.name = name_of(hook_);
  event.phase = phase();
  event.bytes = hook_bytes_;
  return event;
}

std::uint64_t TaskRun::record_end(bool ok, std::string_view failure) {
  in_hook_ = false;
  if (hook_ != Hook::kAbandon) context_->set_running_hook(nullptr);
  ObservedEvent event = event_of(EventKind::kOperation);
  event.duration = tap_.tracer()->now() - hook_started_;
  event.text = ok ? std::string_view(detail_) : failure;
  event.ok = ok;
  const std::uint64_t id = tap_.record_as(protocol::actor_of(hook_), event);
  tap_.set_cause(id);  // for the report that follows
  return id;
}

bool describe(const Request& request, ObservedEvent& event) {
  const TaskRun& run = *request.run;
  event.call = run.context().ticket();
  return describe_as(protocol::name_of(run.task().task), run.context().call().id.checkpointer, event, run.task().counter);
}

TaskActor::behavior_type task_actor(TaskActor::pointer self, std::shared_ptr<Tracer> tracer, Actor actor, TaskRun::Body body) {
  self->set_exception_handler(exit_reason_of);
  const auto tap = std::make_shared<Tap>(std::move(tracer), actor);
  return {[tap, body](const Traced<Request>& message) { tap->handle(message, [&] { message.value.run->post(body); }); }};
}

}  // namespace cairn
