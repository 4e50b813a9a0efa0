// Runs one task on the thread of the call's executor, hook by hook. Reports the task's result to
// the supervisor exactly once, even if an actor or the executor dies.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <caf/typed_actor.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/traced.hpp>
#include <cairn/base/injection.hpp>
#include <cairn/base/profiler_range.hpp>
#include <cairn/base/running_work.hpp>

namespace cairn {

// Runs on one thread at a time; not thread-safe. When the last reference is released, reports a
// failure unless the task has already reported its result.
class TaskRun : public std::enable_shared_from_this<TaskRun> {
 public:
  // `asker` supplies the tracer and the cause of the trace events. `coordinator` is 0 if this
  // rank's RankMachine requested the task. Otherwise it identifies the coordinator actor that
  // requested it (`life` in `spawn_coordinator`). A Request (local_messages.hpp) carries the
  // TaskRun to the planner or storage actor, which then calls `post`.
  TaskRun(std::shared_ptr<Inbox> supervisor, const Tap& asker, std::uint64_t coordinator, protocol::RunTask task,
          std::shared_ptr<CallContext> context, std::shared_ptr<Injector> injector);
  ~TaskRun();
  TaskRun(const TaskRun&) = delete;
  TaskRun& operator=(const TaskRun&) = delete;

  CallContext& context() const { return *context_; }
  const protocol::RunTask& task() const { return task_; }
  StorageContext storage_context() const { return context_->storage_context(task_.counter, task_.save_id, task_.is_coordinator); }

  // Posts `body(*this)` to the executor. `body` returns the task's result, or nothing if its last
  // step is `last_hook`. If `body` throws, the task fails.
  using Body = std::optional<protocol::TaskResult> (*)(TaskRun& run);
  void post(Body body);

  // Runs one hook and returns its result. Records its start and end, also as a range of LibTorch's
  // profiler. Injected faults are thrown as if the hook had thrown them. If the call's tasks were
  // told to stop, throws without running the hook, unless protocol::StopTasks exempts that hook.
  template <class Run>
  auto hook(protocol::Hook which, Run run) {
    const RunningWork work(work_of(which));
    const ProfilerRange range = begin(which, 0);
    if constexpr (std::is_void_v<decltype(run())>) {
      run();
      record_end(true);
    } else {
      auto result = run();
      record_end(true);
      return result;
    }
  }
  // Runs a hook and stores its failure, so that the next hook still runs; `throw_if_failed` later
  // rethrows the stored failure. If another hook fails in between, the task ends there; a stored
  // failure is then reported instead of the later one.
  template <class Run>
  void hook_before_others(protocol::Hook which, Run run) {
    try {
      hook(which, std::move(run));
    } catch (...) {
      first_failure_ = failure_of(std::current_exception());
    }
  }
  void throw_if_failed() const;
  // Sets the text of the running hook's event, unless the hook fails.
  void set_detail(std::string detail) { detail_ = std::move(detail); }
  // Runs a hook that returns a future. When the future is ready, the task ends; its result is
  // `convert(value)`. The profiler's range ends when the hook returns, because the future becomes
  // ready on another thread.
  template <class Run, class Convert>
  std::nullopt_t last_hook(protocol::Hook which, std::uint64_t bytes, Run run, Convert convert) {
    auto future = [&] {
      const RunningWork work(work_of(which));
      const ProfilerRange range = begin(which, bytes);
      return run();
    }();
    if (!future.valid()) refuse_future();
    future.on_ready([self = shared_from_this(), convert](const decltype(future)& ready) {
      try {
        auto result = convert(ready.get());
        self->record_end(true);
        self->end(std::move(result));
      } catch (...) {
        self->fail(std::current_exception());
      }
    });
    return std::nullopt;
  }

 private:
  struct ToldToStop {};

  Work work_of(protocol::Hook hook) const;
  ProfilerRange begin(protocol::Hook hook, std::uint64_t bytes);
  void end(protocol::TaskResult result);
  void fail(const std::exception_ptr& exception);
  void report_dropped();
  Failure failure_of(const std::exception_ptr& exception);
  ObservedEvent event_of(EventKind kind) const;
  std::uint64_t record_end(bool ok, std::string_view failure = {});
  // The Stateful hooks are the last step of joining.
  Phase phase_of(protocol::Hook hook) const { return hook == protocol::Hook::kBegin ? Phase::kJoin : task_.phase; }
  Phase phase() const { return phase_of(hook_); }
  const char* name_of(protocol::Hook hook) const { return protocol::name_of(hook, task_.operation); }
  [[noreturn]] void refuse_future() const;

  const std::shared_ptr<Inbox> supervisor_;
  Tap tap_;
  const std::uint64_t coordinator_;
  const protocol::RunTask task_;
  const std::shared_ptr<CallContext> context_;
  const std::shared_ptr<Injector> injector_;  // null: nothing is injected
  protocol::Hook hook_;                       // the current one, or the last
  bool in_hook_ = false;
  MonotonicTime hook_started_;
  std::uint64_t hook_bytes_ = 0;
  std::string detail_;
  std::optional<Failure> first_failure_;
  bool reported_ = false;
};

// The planner and the storage actor: posts each task that it gets, with `body`.
using TaskActor = caf::typed_actor<caf::reacts_to<Traced<Request>>>;
TaskActor::behavior_type task_actor(TaskActor::pointer self, std::shared_ptr<Tracer> tracer, Actor actor, TaskRun::Body body);

}  // namespace cairn
