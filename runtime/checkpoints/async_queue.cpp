// AsyncQueue: the asynchronous saves of one checkpointer, and those of a process that exits.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <cairn/base/clock.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/checkpoints/async_save.hpp>
#include <cairn/runtime/observation/call_failure.hpp>

namespace cairn {
namespace {

using Saves = std::vector<std::shared_ptr<AsyncSave>>;

// Waits for the saves of one slot, or for all. Returns whether they have ended.
bool wait_for_all(const Saves& saves, std::optional<std::chrono::milliseconds> deadline, const std::string* slot = nullptr) {
  // One deadline for all of them together.
  const auto until = system_clock().now() + bounded_wait(deadline.value_or(kWaitMax));
  for (const auto& save : saves) {
    if (slot && save->slot() != *slot) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - system_clock().now());
    if (!save->wait(std::max(left, std::chrono::milliseconds(0)))) return false;
  }
  return true;
}

void warn(const AsyncSave& save, const std::string& what) {
  write_log(LogLevel::kWarning, save.rank(), "the asynchronous save of '" + save.checkpoint_id() + "' " + what);
}

// Waits for all saves until the deadline. Then cancels those still running, and waits as long
// again. `why`: what is being destroyed.
void end_all(const Saves& saves, std::chrono::milliseconds deadline, const std::string& why) {
  if (wait_for_all(saves, deadline)) return;
  for (const auto& save : saves) {
    if (save->done()) continue;
    warn(*save, "has not ended in time, and is cancelled: " + why + " goes away");
    save->cancel(why + " of this rank goes away");
  }
  // Cancelled saves end soon, unless a hook does not return.
  wait_for_all(saves, deadline);
}

void report_left_behind(const AsyncSave& save) { warn(save, "is left behind: a hook of its has not returned"); }

void report_unread(AsyncSave& save) {
  if (const auto error = save.take_unread()) warn(save, "has failed, and nobody had asked: " + text_of(error));
}

// Waits, at exit, for the saves that still exist then.
class SavesAtExit {
 public:
  static void add(const std::shared_ptr<AsyncSave>& save) {
    SavesAtExit& all = instance();
    MutexLock lock(all.mutex_);
    // Otherwise the list would grow with every save of a long run.
    all.saves_.erase(std::remove_if(all.saves_.begin(), all.saves_.end(), [](const auto& known) { return known.expired(); }),
                     all.saves_.end());
    all.saves_.push_back(save);
    all.deadline_ = std::max(all.deadline_, save->shutdown_deadline());
  }

 private:
  SavesAtExit() { std::atexit(end); }

  // Never destroyed. Created after the first state has been staged: atexit handlers run in reverse
  // order, so this one runs before LibTorch destroys what it had created by then.
  static SavesAtExit& instance() {
    static SavesAtExit* const all = new SavesAtExit;
    return *all;
  }

  static void end() noexcept {
    SavesAtExit& all = instance();
    if (::getpid() != all.process_) return;  // the threads that it would wait for are not in this process
    try {
      Saves saves;
      std::chrono::milliseconds deadline;
      {
        MutexLock lock(all.mutex_);
        for (const auto& known : all.saves_)
          if (auto save = known.lock()) saves.push_back(std::move(save));
        deadline = all.deadline_;
      }
      // Without the lock: `on_done` of a save may start another one.
      end_all(saves, deadline, "the process");
      for (const auto& save : saves) {
        if (!save->done()) report_left_behind(*save);
        report_unread(*save);
      }
    } catch (...) {  // out of memory: nothing can be logged
    }
  }

  const pid_t process_ = ::getpid();
  Mutex mutex_;
  std::vector<std::weak_ptr<AsyncSave>> saves_ CAIRN_GUARDED_BY(mutex_);
  std::chrono::milliseconds deadline_ CAIRN_GUARDED_BY(mutex_){0};
};

}  // namespace

void AsyncQueue::add(std::shared_ptr<AsyncSave> save) {
  SavesAtExit::add(save);
  saves_.push_back(std::move(save));
}

bool AsyncQueue::any_in_flight() const {
  MutexLock lock(order_->mutex);
  return order_->turns.any();
}

bool AsyncQueue::wait(std::optional<std::chrono::milliseconds> deadline, const std::string* slot) const {
  return wait_for_all(saves_, deadline, slot);
}

void AsyncQueue::replace(const std::string& why) const {
  std::vector<std::shared_ptr<AsyncSave>> replaced;
  for (const auto& save : saves_)
    if (save->cancel_before_turn(why)) replaced.push_back(save);
  // After all are cancelled, so that they end at the same time.
  for (const auto& save : replaced) save->wait(std::nullopt);
}

std::exception_ptr AsyncQueue::take_unread(const std::string& by) {
  std::exception_ptr found;
  std::vector<std::shared_ptr<AsyncSave>> kept;
  for (auto& save : saves_) {
    if (!save->done()) {
      kept.push_back(std::move(save));
      continue;
    }
    save->join();
    if (!save->is_unread()) continue;
    // An exception has room for one failure. The others wait for the next call.
    if (found) {
      kept.push_back(std::move(save));
      continue;
    }
    try {
      std::rethrow_exception(save->take_unread());
    } catch (const CheckpointException& exception) {
      found = std::make_exception_ptr(CheckpointException(
          by + " came across the failure of an earlier save, which nobody had read: " + saving(save->checkpoint_id()),
          exception.result()));
    } catch (...) {
      found = std::current_exception();
    }
  }
  saves_ = std::move(kept);
  return found;
}

void AsyncQueue::close(std::chrono::milliseconds deadline, const std::shared_ptr<void>& needed) {
  end_all(saves_, deadline, "the checkpointer");
  for (const auto& save : saves_) {
    // A hook that does not return must not keep this process from going on. Its save takes what it
    // needs along.
    if (save->abandon(needed)) {
      report_left_behind(*save);
      continue;
    }
    save->join();
    report_unread(*save);
  }
  saves_.clear();
}

}  // namespace cairn
