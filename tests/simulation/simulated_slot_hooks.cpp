// Runs the hooks of a simulated rank's slot.
#include <stdexcept>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/tests/simulation/simulated_slot.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

using protocol::Hook;
using protocol::Operation;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

}  // namespace

void SimulatedSlot::queue(QueuedHook hook) {
  hooks_.push_back(std::move(hook));
  start_hook();
}

void SimulatedSlot::start_hook() {
  if (fiber_ || hooks_.empty() || !rank_.alive()) return;
  running_ = std::move(hooks_.front());
  hooks_.pop_front();
  fiber_ = std::make_unique<Fiber>([this] {
    rank_.pause(world_.dice.between(microseconds(10), milliseconds(2)));
    run_body(*running_, result_);
  });
  // Deferred, because the caller may be a machine's step or another fiber.
  world_.time.after(Duration(0), [this] { rank_.when_awake([this] { resume_hook(); }); });
}

void SimulatedSlot::run_body(QueuedHook& queued, protocol::HookDone& done) {
  protocol::RunHook& hook = queued.hook;
  done = {hook.sequence, protocol::HookValue{}};
  if (!rank_.alive()) return;
  rank_.trace(std::string("runs ") + name_of(hook.hook, hook.operation));
  rank_.hook_runs(number_, hook.hook);
  queued.began = record_hook(EventKind::kBegan, queued, nullptr);
  queued.began_at = rank_.recording().now();
  if (hook.hook == Hook::kReset && hook.operation == Operation::kSave)
    world_.ledger.saving(hook.save_id, job_.spec().program[number_ - 1].version);
  try {
    const auto fault = rank_.troubles.hooks.find({number_, hook.hook});
    const std::string name = name_of(hook.hook, hook.operation);
    const bool planned = fault != rank_.troubles.hooks.end();
    if (planned) {
      world_.coverage.hit("trouble in " + name);
      switch (fault->second) {
        case HookFault::kFutureFails:
          break;
        case HookFault::kThrows:
          throw std::runtime_error("planned fault in " + name);
        case HookFault::kThrowsStrangely:
          throw 42;  // NOLINT: user code may throw anything
        case HookFault::kKilled:
          rank_.kill(false);
          return;
        case HookFault::kSlow:
          rank_.disturb();
          rank_.pause(world_.dice.between(seconds(1), 2 * world_.options.phase_deadline));
          break;
      }
    }
    done.result = run_hook(hook, *queued.call);
    if (hook.hook == Hook::kAskCommitted) {
      const bool committed = std::get<Committed>(std::get<protocol::HookValue>(done.result)) == Committed::kYes;
      world_.coverage.hit(committed ? "settled: committed" : "settled: not committed");
    }
    if (planned && fault->second == HookFault::kFutureFails) throw std::runtime_error("planned fault in " + name);
  } catch (...) {
    done.result = capture_failure(rank_.rank(), hook.phase, actor_of(hook.hook), std::current_exception());
    const Failure& failure = std::get<Failure>(done.result);
    if (failure.code == ErrorCode::kFenced) world_.coverage.hit("a fence came before the publication");
    rank_.trace(std::string(name_of(hook.hook, hook.operation)) + " fails: " + failure.what);
  }
}

std::uint64_t SimulatedSlot::record_hook(EventKind kind, const QueuedHook& queued, const Failure* failure) {
  const protocol::RunHook& hook = queued.hook;
  if (hook.hook == Hook::kRelease) return queued.cause;
  ObservedEvent event = call_event(kind, name_of(hook.hook, hook.operation), name_, hook.counter, failure == nullptr);
  event.phase = hook.phase;
  if (failure != nullptr) event.text = failure->what;
  if (kind == EventKind::kOperation) event.duration = rank_.recording().now() - queued.began_at;
  return rank_.recording().record(actor_of(hook.hook), event, kind == EventKind::kBegan ? queued.cause : queued.began);
}

void SimulatedSlot::resume_hook() {
  if (!fiber_) return;
  rank_.resume(*this, *fiber_);
  if (fiber_->ended()) end_hook();
}

void SimulatedSlot::end_hook() {
  fiber_.reset();
  QueuedHook ended = std::move(*running_);
  running_.reset();
  if (!rank_.alive()) return;
  protocol::HookDone done = std::exchange(result_, {});
  auto* const failure = std::get_if<Failure>(&done.result);
  const std::uint64_t cause = record_hook(EventKind::kOperation, ended, failure);
  if (failure != nullptr) failure->trace_position = cause;
  // A hook that fails as cancelled was dropped before its turn. That is not a failure of its own.
  if (ended.coordinator == 0 && failure && failure->code != ErrorCode::kCancelled && outcomes_.empty()) own_hook_failed_ = true;
  if (ended.hook.hook == Hook::kMoveData && !failure) job_.moved(name_, ended.hook.counter, rank_.rank());
  if (ended.hook.hook == Hook::kBegin && ended.call->background) rank_.call_returned(number_);
  ended.call.reset();
  world_.time.after(microseconds(50), [this, done = std::move(done), life = ended.coordinator, cause] {
    rank_.when_awake([this, done, life, cause] {
      const SimulatedTrace::Because because(rank_.recording(), cause);
      if (life == 0) step_rank(done);
      if (life != 0 && life == coordinator_life_) step_coordinator(done);
      rank_.stop_if_idle();
    });
  });
  start_hook();
  let_go();
}

void SimulatedSlot::drain() {
  while (fiber_) resume_hook();
}

// --- turns ---------------------------------------------------------------------------------------

// Runs on the hook's fiber, as an asynchronous save waits on its own thread.
const StateDict& SimulatedSlot::await_turn(const RunningCall& call) {
  while (rank_.alive()) {
    const auto turn = rank_.turns().take(number_);
    if (turn == protocol::SaveTurn::kTaken) {
      if (job_.spec().own_tools || !rank_.another_has_turn(number_)) return call.state;
      const std::string what = rank_.where() + ": call " + std::to_string(number_) + " uses planner and writer beside another";
      world_.ledger.accuse(what);
      throw Error(ErrorCode::kInternal, what);
    }
    if (turn == protocol::SaveTurn::kDropped) {
      world_.coverage.hit("a save is dropped before its turn");
      throw Error(ErrorCode::kCancelled, "the save was cancelled before its turn came");
    }
    world_.coverage.hit("a save waits for its turn");
    rank_.trace("call " + std::to_string(number_) + " waits for its turn");
    waits_for_turn_ = true;
    Fiber::suspend();
  }
  throw Error(ErrorCode::kCancelled, "the rank was killed");
}

void SimulatedSlot::look_at_turn() {
  if (!std::exchange(waits_for_turn_, false)) return;
  world_.time.after(Duration(0), [this] { rank_.when_awake([this] { resume_hook(); }); });
}

}  // namespace cairn::simulation
