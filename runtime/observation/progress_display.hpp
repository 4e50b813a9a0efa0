// Shows the progress of one save or load, from construction to `end`: on a terminal as one redrawn
// line, otherwise in the log. Internal.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <cairn/actors/call_progress.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/status_line.hpp>
#include <cairn/runtime/observation/progress.hpp>
#include <cairn/runtime/observation/progress_text.hpp>

namespace cairn {

// The log gets one line for each phase after the join, however short the phase, and one line for
// the end. The display has a thread of its own, so that neither the call nor an actor waits for a
// terminal or a log sink. Does nothing if the thread cannot be started, or if the progress is
// neither shown on a terminal nor logged.
class ProgressDisplay {
 public:
  ProgressDisplay(ShownCall what, std::shared_ptr<const CallProgress> progress) noexcept
      : what_(std::move(what)), progress_(std::move(progress)), start_(system_clock().now()) {
    if (what_.rank != 0 || what_.how == ShowProgress::kOff) return;
    const bool in_log = is_logged(LogLevel::kInfo);
    on_terminal_ = what_.how == ShowProgress::kTerminal && is_logged_to_stderr() && has_status_terminal();
    // Nobody would see anything, so no thread is needed.
    if (!on_terminal_ && !in_log) return;
    try {
      thread_ = start_thread("cairn-progress", [this] { show_until_end(); });
    } catch (const std::exception&) {  // no thread, or no memory
    }
  }
  ~ProgressDisplay() { end(false); }

  // Shows that the call has ended.
  void end(bool ok) noexcept {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    // Before the last output: two threads must not draw at once.
    thread_.join();
    if (on_terminal_) return clear_status();
    try {
      show_phases();
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(system_clock().now() - start_);
      write_log(LogLevel::kInfo, 0, end_text(seen(), ok, took));
    } catch (...) {  // out of memory: nothing can be logged
    }
  }

 private:
  static constexpr std::chrono::milliseconds kRedraw{200};

  void show_until_end() noexcept {
    MutexLock lock(mutex_);
    while (!changed_.wait_for(mutex_, kRedraw, [this]() CAIRN_REQUIRES(mutex_) { return ended_; })) {
      lock.unlock();
      try {
        if (on_terminal_)
          draw_status(status_text(seen(), status_columns()));
        else
          show_phases();
      } catch (...) {  // out of memory: tried again at the next redraw
      }
      lock.lock();
    }
  }

  // Logs the phases that the call has entered since the last call of this function.
  void show_phases() {
    ShownProgress progress = seen();
    const CallProgress::Step now = progress_->seen().step;
    while (phase_shown_ < now) {
      phase_shown_ = static_cast<CallProgress::Step>(static_cast<int>(phase_shown_) + 1);
      progress.step = phase_shown_;
      write_log(LogLevel::kInfo, 0, phase_text(progress));
    }
  }

  ShownProgress seen() const {
    ShownProgress progress = shown(progress_->seen(), system_clock().now());
    static_cast<ShownCall&>(progress) = what_;
    return progress;
  }

  const ShownCall what_;
  const std::shared_ptr<const CallProgress> progress_;
  const MonotonicTime start_;
  bool on_terminal_ = false;
  CallProgress::Step phase_shown_ = CallProgress::Step::kJoining;

  Mutex mutex_;
  CondVar changed_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairn
