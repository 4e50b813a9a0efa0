#include <cairn/runtime/observation/call_notifier.hpp>

#include <algorithm>
#include <deque>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include <cairn/base/call_phase.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/observation/call_failure.hpp>

namespace cairn {
namespace {

constexpr std::size_t kPendingMax = 4096;
// Only the coordinator's rank sees these. The other ranks do not know when these phases begin.
bool begins_at_coordinator(const ObservedEvent& event) {
  return event.is(CoordinatorState::kGlobalPlan) || event.is(CoordinatorState::kFinishing);
}

// Listeners need few of the events, and none that occur once per message. Agreements are not
// reported: without their kCall, `take` drops their other events.
bool is_told(const ObservedEvent& event) {
  switch (event.kind) {
    case EventKind::kCall:
      return !event.is(Operation::kAgree);
    case EventKind::kFailure:
    case EventKind::kOutcome:
      return true;
    case EventKind::kState:
      return event.as<RankState>() != nullptr || begins_at_coordinator(event);
    case EventKind::kBegan:
      return event.bytes != 0;
    default:
      return false;
  }
}

// An event that owns its text.
struct Pending {
  explicit Pending(const ObservedEvent& of) : event(of), text(of.text) { event.text = {}; }
  ObservedEvent event;
  std::string text;
};

}  // namespace

const char* to_string(CallOperation operation) noexcept { return operation == CallOperation::kSave ? "save" : "load"; }

// Translates the events of one rank's calls, and tells the listeners. Shared with the thread, so
// that a listener that never returns does not keep the world from ending.
struct CallNotifier::Shared {
  Shared(int of_rank, std::vector<std::shared_ptr<CallListener>> to_tell) : rank(of_rank), listeners(std::move(to_tell)) {}

  void serve() {
    tell(&CallListener::on_world_start, rank);
    MutexLock lock(mutex);
    while (true) {
      changed.wait(mutex, [this]() CAIRN_REQUIRES(mutex) { return !queue.empty() || closing; });
      if (queue.empty()) break;
      const Pending next = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      take(next);
      lock.lock();
      ++told;
      changed.notify_all();
    }
    lock.unlock();
    // No more events will come: ends all calls that are still running.
    for (auto& [ticket, call] : calls) end(call);
    tell(&CallListener::on_world_end, rank);
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  // --- on the listeners' thread ---

  void take(const Pending& pending) {
    const ObservedEvent& event = pending.event;
    if (event.kind == EventKind::kCall) return start(pending);
    const auto found = find(event);
    if (found == calls.end()) return;
    Running& call = found->second;
    pass(call, event);
    switch (event.kind) {
      case EventKind::kBegan:
        call.event.bytes = event.bytes;
        break;
      case EventKind::kState:
        enter(call, event);
        break;
      case EventKind::kFailure:
        fail(call, pending);
        break;
      default:
        end(call, &pending);
        calls.erase(found);
    }
  }

  struct Running {
    CallEvent event;
    std::uint32_t checkpointer = 0;
    MonotonicTime start;
    MonotonicTime now;
    std::optional<Phase> phase;
    MonotonicTime phase_start;
    std::map<Phase, Duration> phases;
    bool is_only_cancelled = true;
    bool has_failed = false;
  };

  using Calls = std::map<std::uint64_t, Running>;  // by ObservedEvent::call

  // Returns the call that the event belongs to. The coordinator knows the attempt only.
  Calls::iterator find(const ObservedEvent& event) {
    if (event.call != 0) return calls.find(event.call);
    return std::find_if(calls.begin(), calls.end(), [&](const auto& entry) {
      return entry.second.checkpointer == event.checkpointer && entry.second.event.attempt == event.attempt && event.attempt != 0;
    });
  }

  template <class Method, class Event>
  void tell(Method of, const Event& event) {
    for (const auto& listener : listeners) {
      try {
        (listener.get()->*of)(event);
      } catch (...) {
        write_log(LogLevel::kWarning, rank, "a listener threw, and saves and loads go on: " + text_of(std::current_exception()));
      }
    }
  }

  template <class Event>
  static Event event_of(const Running& call) {
    Event event;
    static_cast<CallEvent&>(event) = call.event;
    return event;
  }

  void start(const Pending& pending) {
    const ObservedEvent& event = pending.event;
    // A checkpointer makes one call at a time.
    for (auto earlier = calls.begin(); earlier != calls.end();) {
      const bool is_over = earlier->second.checkpointer == event.checkpointer;
      if (is_over) end(earlier->second);
      earlier = is_over ? calls.erase(earlier) : std::next(earlier);
    }
    Running call;
    call.checkpointer = event.checkpointer;
    call.event.operation = event.is(Operation::kLoad) ? CallOperation::kLoad : CallOperation::kSave;
    call.event.checkpoint_id = pending.text;
    call.event.rank = rank;
    call.event.call = ++count;
    call.start = event.time;
    pass(call, event);
    tell(&CallListener::on_start, call.event);
    calls[event.call] = std::move(call);
  }

  void pass(Running& call, const ObservedEvent& event) {
    call.now = std::max(call.now, event.time);
    call.event.time = event.wall_time;
    call.event.elapsed = call.now - call.start;
    if (event.attempt != 0) call.event.attempt = event.attempt;
  }

  void leave_phase(Running& call) {
    if (call.phase) call.phases[*call.phase] += call.now - call.phase_start;
    call.phase.reset();
  }

  void enter(Running& call, const ObservedEvent& event) {
    const Operation operation = call.event.operation == CallOperation::kSave ? Operation::kSave : Operation::kLoad;
    const auto* const state = event.as<RankState>();
    if (state != nullptr && is_waiting(*state)) return;  // still in the phase, or in one of the coordinator that follows it
    leave_phase(call);
    const auto phase = state != nullptr ? phase_of(*state, operation) : phase_of(*event.as<CoordinatorState>(), operation);
    if (!phase) return;
    call.phase = phase;
    call.phase_start = call.now;
    auto entered = event_of<CallPhase>(call);
    entered.phase = *phase;
    tell(&CallListener::on_phase, entered);
  }

  void fail(Running& call, const Pending& pending) {
    const ObservedEvent& event = pending.event;
    auto failed = event_of<CallFailed>(call);
    failed.failed_rank = event.peer < 0 ? rank : event.peer;
    failed.kind = *event.as<FailureKind>();
    failed.phase = event.phase;
    failed.code = event.code ? to_string(*event.code) : "";
    failed.text = pending.text;
    call.has_failed = true;
    call.is_only_cancelled = call.is_only_cancelled && failed.kind == FailureKind::kCancelled;
    tell(&CallListener::on_failure, failed);
  }

  // `pending`: the outcome; null if it was not heard.
  void end(Running& call, const Pending* pending = nullptr) {
    leave_phase(call);
    auto end = event_of<CallEnd>(call);
    if (pending) {
      end.ok = pending->event.ok;
      end.was_cancelled = !end.ok && call.has_failed && call.is_only_cancelled;
      end.committed = *pending->event.as<Committed>();
      end.save_id = pending->text;
    }
    end.phases = std::move(call.phases);
    tell(&CallListener::on_end, end);
  }

  const int rank;
  const std::vector<std::shared_ptr<CallListener>> listeners;
  // Used by the listeners' thread only.
  Calls calls;
  std::uint64_t count = 0;

  Mutex mutex;
  CondVar changed;
  std::deque<Pending> queue CAIRN_GUARDED_BY(mutex);
  std::uint64_t taken CAIRN_GUARDED_BY(mutex) = 0;
  std::uint64_t told CAIRN_GUARDED_BY(mutex) = 0;
  std::uint64_t dropped CAIRN_GUARDED_BY(mutex) = 0;
  bool closing CAIRN_GUARDED_BY(mutex) = false;
  bool ended CAIRN_GUARDED_BY(mutex) = false;
  std::thread thread;
};

CallNotifier::CallNotifier(int rank, std::vector<std::shared_ptr<CallListener>> listeners, std::shared_ptr<Observer> next)
    : next_(std::move(next)), shared_(std::make_shared<Shared>(rank, std::move(listeners))) {
  try {
    shared_->thread = start_thread("cairn-events", [shared = shared_] { shared->serve(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kUnavailable, std::string("cannot start the thread of listeners: ") + error.what());
  }
}

CallNotifier::~CallNotifier() { close(std::chrono::milliseconds(0)); }

void CallNotifier::on_event(const ObservedEvent& event) noexcept {
  if (next_) next_->on_event(event);
  if (!is_told(event)) return;
  bool is_first_drop = false;
  try {
    Pending copy(event);
    const MutexLock lock(shared_->mutex);
    if (shared_->closing) return;
    if (shared_->queue.size() >= kPendingMax) {
      is_first_drop = ++shared_->dropped == 1;
    } else {
      shared_->queue.push_back(std::move(copy));
      ++shared_->taken;
      shared_->changed.notify_all();
    }
  } catch (...) {  // out of memory: the event is lost
  }
  if (is_first_drop)
    write_log(LogLevel::kWarning, shared_->rank, "listeners are slower than saves and loads: from now on some events are not told");
}

bool CallNotifier::flush(std::chrono::milliseconds deadline) {
  if (shared_->thread.get_id() == std::this_thread::get_id()) return true;
  Shared& shared = *shared_;
  const MutexLock lock(shared.mutex);
  const std::uint64_t all = shared.taken;
  return shared.changed.wait_for(shared.mutex, bounded_wait(deadline),
                                 [&]() CAIRN_REQUIRES(shared.mutex) { return shared.told >= all || shared.ended; });
}

void CallNotifier::close(std::chrono::milliseconds deadline) noexcept {
  if (!shared_->thread.joinable()) return;
  const bool is_own = shared_->thread.get_id() == std::this_thread::get_id();
  bool ended = false;
  {
    Shared& shared = *shared_;
    const MutexLock lock(shared.mutex);
    shared.closing = true;
    shared.changed.notify_all();
    ended = !is_own && shared.changed.wait_for(shared.mutex, bounded_wait(deadline),
                                               [&]() CAIRN_REQUIRES(shared.mutex) { return shared.ended; });
  }
  if (ended)
    shared_->thread.join();
  else
    shared_->thread.detach();
}

}  // namespace cairn
