#include <cairn/runtime/checkpoints/async_save.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

#include <c10/core/StreamGuard.h>

#include <cairn/base/clock.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/profiler_range.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/checkpoints/async_handle.hpp>
#include <cairn/runtime/observation/call_failure.hpp>
#include <cairn/state/call_hooks.hpp>
#include <cairn/state/staged_values.hpp>

namespace cairn {
namespace {

// A failure that callers requested need not be reported to them.
bool was_cancelled_by_callers(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CheckpointException& exception) {
    const auto& failures = exception.failures();
    return std::all_of(failures.begin(), failures.end(), [](const auto& entry) {
      return entry.second.kind == FailureKind::kCancelled && entry.second.code == ErrorCode::kCancelled &&
             entry.second.actor == "trainer";
    });
  } catch (...) {
    return false;
  }
}

}  // namespace

AsyncSave::AsyncSave(Parts parts)
    : parts_(std::move(parts)),
      leases_([this] { set_staged(); }),
      writer_(*parts_.writer, streams() ? &leases_ : nullptr),
      planner_(
          *parts_.planner, *progress_, [this]() -> const StateDict& { return staged_state(); },
          streams() ? CountingSavePlanner::Lend([this](const SavePlan& plan, const WriteItem& item, const torch::Tensor& tensor) {
            return leases_.lend(plan, item, tensor);
          })
                    : nullptr) {}

AsyncSave::~AsyncSave() { join(); }

// --- on the caller's thread ---

void AsyncSave::begin(SaveCall call, const Describe& describe) {
  call.begin = [this, &describe](const std::vector<std::string>& key_order) {
    described_ = true;  // even if it throws: the rest is for the save's own thread
    stage(describe(key_order));
  };
  call.executor = &executor_;
  call.hooks = make_save_hooks(state_, planner_, writer_, parts_.rules);
  call.progress = progress_;
  const auto self = shared_from_this();
  {
    MutexLock lock(parts_.order->mutex);
    // Before the call starts, because its hooks ask for their turn.
    parts_.order->turns.begin(parts_.number);
  }
  try {
    // The save's own thread keeps this object alive until it has seen the outcome. The callback
    // holds no handle: as the last one, it could destroy this object on one of the writer's
    // threads, which cannot join itself.
    ticket_ = parts_.start(std::move(call), [this](CallResult outcome) { executor_.deliver(std::move(outcome)); });
  } catch (...) {
    MutexLock lock(parts_.order->mutex);
    parts_.order->turns.end(parts_.number);
    throw;
  }
  try {
    // Only now is there a ticket to cancel. A cancellation that has come before reacts at once.
    for (const auto& cancellation : {std::optional<Cancellation>(own_cancellation_), parts_.cancellation})
      if (cancellation) heeding_.push_back(cancellation->watch([this](const std::string& why) { request_end(why); }));
    // Stateful hooks and the start of staging belong to the caller's thread, which may use the
    // objects itself afterwards.
    executor_.run_until([this] { return described_; });
    if (!staging_) end_staging();
    try {
      thread_ = start_thread("cairn-save", [self] { self->serve(); });
    } catch (const std::system_error&) {
      serve();  // no thread could be started: the caller's thread does all the work
    }
  } catch (...) {
    // Out of memory. The call is running, and its hooks refer to this object: wait for them.
    parts_.options.on_done = nullptr;  // the exception tells the caller
    try {
      request_end("the asynchronous save could not be started");
    } catch (...) {  // it cannot be cancelled: wait until it ends by itself
    }
    serve();
    throw;
  }
  if (parts_.options.staging.block_on_staging) wait_staged(std::nullopt);
}

void AsyncSave::stage(const StateDict& state) {
  const ProfilerRange range("stage");
  staging_began_ = system_clock().now();
  if (streams()) {
    Value tensors{StateDict(state)};
    // The writer reads the tensors later, on other threads. It must come after the work that the
    // caller has queued on their devices.
    replace_tensors(tensors, "", [this](const std::string&, const torch::Tensor& tensor) {
      if (tensor.defined() && !tensor.is_cpu()) streams_.of(tensor.device());
      return tensor;
    });
  }
  staging_ = parts_.stager->begin(state);
  if (!streams() && !parts_.options.staging.block_on_staging) return;
  state_ = std::exchange(staging_, nullptr)->finish();
  note_staged();
}

// --- on the save's own thread ---

void AsyncSave::serve() noexcept {
  if (staging_) end_staging();  // the trainer may be waiting for that
  {
    // Work that hooks queue on devices comes after that of the caller.
    const c10::MultiStreamGuard of_devices(streams_.all());
    CallResult outcome;
    {
      // Ends before callers learn that the save has ended: they may then end the profiler.
      const ProfilerRange range("background_save");
      outcome = executor_.run();
    }
    end(std::move(outcome));
  }
  std::shared_ptr<void> needed;  // destroyed after everything else
  MutexLock lock(parts_.order->mutex);
  std::swap(needed, needed_);
}

// Finishes staging, if it is not finished yet, and reports that.
void AsyncSave::end_staging() {
  try {
    if (staging_) {
      const ProfilerRange range("stage");
      state_ = staging_->finish();
      note_staged();
    }
  } catch (...) {
    staging_error_ = std::current_exception();
  }
  staging_.reset();
  if (!streams()) set_staged();
}

void AsyncSave::note_staged() const {
  if (parts_.note_staging) parts_.note_staging(parts_.slot, ticket_, system_clock().now() - staging_began_);
}

void AsyncSave::set_staged() {
  MutexLock lock(parts_.order->mutex);
  staged_ = true;
  parts_.order->changed.notify_all();
}

bool AsyncSave::had_turn() const {
  MutexLock lock(parts_.order->mutex);
  return parts_.order->turns.was_taken(parts_.number);
}

// The planner's first hook waits here for the save's turn. If the call has been cancelled,
// kCancelled from this hook does not count as a failure of its own.
const StateDict& AsyncSave::staged_state() {
  SaveOrder& order = *parts_.order;
  {
    MutexLock lock(order.mutex);
    auto turn = protocol::SaveTurn::kWaits;
    order.changed.wait(order.mutex, [&]() CAIRN_REQUIRES(order.mutex) {
      turn = order.turns.take(parts_.number);
      return turn != protocol::SaveTurn::kWaits;
    });
    if (turn == protocol::SaveTurn::kDropped)
      throw Error(ErrorCode::kCancelled, saving(checkpoint_id()) + " was cancelled before its turn came");
  }
  if (staging_error_) std::rethrow_exception(staging_error_);
  display_ = std::make_unique<ProgressDisplay>(parts_.shown, progress_);
  writer_.begin_turn();
  return state_;
}

void AsyncSave::end(CallResult outcome) {
  // From here on no cancellation calls back into this save.
  heeding_.clear();
  leases_.disarm();
  if (display_) display_->end(outcome.ok());
  display_.reset();
  // Cairn's own planner is kept for the next save: let it release the state that it was set up
  // with.
  try {
    if (had_turn() && !parts_.planner_is_users) parts_.planner->set_up_planner({}, rank(), false);
  } catch (...) {  // out of memory: the next save sets it up anyway
  }
  // Before callers learn that the save has ended: their next save may need this memory.
  state_ = {};
  staging_error_ = nullptr;
  std::string save_id;
  std::exception_ptr error;
  try {
    if (!outcome.ok()) throw CheckpointException(saving(checkpoint_id()), std::move(outcome));
    save_id = std::move(outcome.save_id);
  } catch (...) {  // also if memory runs out
    error = std::current_exception();
  }
  const auto on_done = std::exchange(parts_.options.on_done, nullptr);  // it may hold a handle of this save
  {
    MutexLock lock(parts_.order->mutex);
    error_ = error;
    save_id_ = std::move(save_id);
    staged_ = true;
    done_ = true;
    read_ = on_done != nullptr;
    parts_.order->turns.end(parts_.number);
    parts_.order->changed.notify_all();
  }
  if (!on_done) return;
  try {
    // Without the lock: user code, which may ask this save for its result.
    on_done(error);
  } catch (...) {
    write_log(LogLevel::kWarning, rank(),
              "on_done of the asynchronous save of '" + checkpoint_id() + "' threw: " + text_of(std::current_exception()));
  }
}

// --- on any thread ---

void AsyncSave::request_end(const std::string& why) {
  // Cancels the call before the turn: a hook that throws kCancelled counts as a failure unless its
  // call has been cancelled already.
  parts_.end(parts_.slot, ticket_, why);
  MutexLock lock(parts_.order->mutex);
  parts_.order->turns.drop(parts_.number);
  parts_.order->changed.notify_all();
}

bool AsyncSave::cancel_before_turn(const std::string& why) {
  {
    MutexLock lock(parts_.order->mutex);
    // Once its turn has come, it may have written already, and is not replaced.
    if (!parts_.order->turns.hold(parts_.number)) return false;
  }
  cancel(why);
  return true;
}

bool AsyncSave::wait_for(bool AsyncSave::*flag, std::optional<std::chrono::milliseconds> deadline) const {
  if (::getpid() != process_) {
    // No thread of this process will set the flag, or release a lock that was held during the fork.
    if (parts_.order->mutex.try_lock()) {
      const bool reached = this->*flag;
      parts_.order->mutex.unlock();
      if (reached) return true;
    }
    throw Error(ErrorCode::kPrecondition,
                saving(checkpoint_id()) + " cannot be waited for in a forked child process: it runs in the parent");
  }
  MutexLock lock(parts_.order->mutex);
  const auto reached = [&] { return this->*flag; };
  if (deadline) return parts_.order->changed.wait_for(parts_.order->mutex, bounded_wait(*deadline), reached);
  parts_.order->changed.wait(parts_.order->mutex, reached);
  return true;
}

bool AsyncSave::staged() const { return wait_for(&AsyncSave::staged_, std::chrono::milliseconds(0)); }
bool AsyncSave::wait_staged(std::optional<std::chrono::milliseconds> deadline) const {
  const ProfilerRange range("wait_staged");
  return wait_for(&AsyncSave::staged_, deadline);
}
bool AsyncSave::done() const { return wait_for(&AsyncSave::done_, std::chrono::milliseconds(0)); }
bool AsyncSave::wait(std::optional<std::chrono::milliseconds> deadline) const {
  const ProfilerRange range("wait");
  return wait_for(&AsyncSave::done_, deadline);
}

std::string AsyncSave::result() {
  wait(std::nullopt);
  MutexLock lock(parts_.order->mutex);
  read_ = true;
  if (error_) std::rethrow_exception(error_);
  return save_id_;
}

bool AsyncSave::is_news() const { return done_ && error_ && !read_ && !was_cancelled_by_callers(error_); }

bool AsyncSave::is_unread() const {
  MutexLock lock(parts_.order->mutex);
  return is_news();
}

std::exception_ptr AsyncSave::take_unread() {
  MutexLock lock(parts_.order->mutex);
  if (!is_news()) return nullptr;
  read_ = true;
  return error_;
}

SaveProgress AsyncSave::progress() const {
  SaveProgress progress = progress_of(progress_->seen(), system_clock().now());
  progress.staging_bytes = parts_.stager->bytes_held() + (streams() ? parts_.writer->staging_bytes() : 0);
  MutexLock lock(parts_.order->mutex);
  if (done_)
    progress.step = SaveProgress::Step::kDone;
  else if (!staged_)
    progress.step = SaveProgress::Step::kStaging;
  else if (!parts_.order->turns.has_come(parts_.number))
    progress.step = SaveProgress::Step::kQueued;
  return progress;
}

void AsyncSave::join() {
  if (!thread_.joinable()) return;
  // `on_done` may have held the last handle of this save.
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

bool AsyncSave::abandon(std::shared_ptr<void> needed) {
  MutexLock lock(parts_.order->mutex);
  if (done_) return false;
  needed_ = std::move(needed);
  if (thread_.joinable()) thread_.detach();
  return true;
}

// --- the handle that users have ---

bool AsyncSaveResponse::staged() const { return save_->staged(); }
bool AsyncSaveResponse::wait_staged(std::optional<std::chrono::milliseconds> deadline) const {
  return save_->wait_staged(deadline);
}
bool AsyncSaveResponse::done() const { return save_->done(); }
bool AsyncSaveResponse::wait(std::optional<std::chrono::milliseconds> deadline) const { return save_->wait(deadline); }
std::string AsyncSaveResponse::result() const { return save_->result(); }
SaveProgress AsyncSaveResponse::progress() const { return save_->progress(); }
void AsyncSaveResponse::cancel(const std::string& why) const { save_->cancel(why); }

}  // namespace cairn
