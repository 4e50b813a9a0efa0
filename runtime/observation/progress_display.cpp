#include <cairn/runtime/observation/progress_display.hpp>

#include <exception>
#include <utility>

#include <cairn/base/log.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/status_line.hpp>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using Step = CallProgress::Step;

constexpr milliseconds kRedraw{200};

}  // namespace

ProgressDisplay::ProgressDisplay(What what, std::shared_ptr<const CallProgress> progress) noexcept
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

ProgressDisplay::~ProgressDisplay() { end(false); }

void ProgressDisplay::end(bool ok) noexcept {
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
    const auto took = std::chrono::duration_cast<milliseconds>(system_clock().now() - start_);
    write_log(LogLevel::kInfo, 0, end_text(seen(), ok, took));
  } catch (...) {  // out of memory: nothing can be logged
  }
}

void ProgressDisplay::show_until_end() noexcept {
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

ShownProgress ProgressDisplay::seen() const {
  ShownProgress progress = shown(progress_->seen(), system_clock().now());
  progress.is_save = what_.is_save;
  progress.checkpoint_id = what_.checkpoint_id;
  progress.ranks = what_.ranks;
  return progress;
}

// Logs the phases that the call has entered since the last call of this function.
void ProgressDisplay::show_phases() {
  ShownProgress progress = seen();
  const Step now = progress_->seen().step;
  while (phase_shown_ < now) {
    phase_shown_ = static_cast<Step>(static_cast<int>(phase_shown_) + 1);
    progress.step = phase_shown_;
    write_log(LogLevel::kInfo, 0, phase_text(progress));
  }
}

}  // namespace cairn
