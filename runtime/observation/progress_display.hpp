// Shows the progress of one save or load, from construction to `end`: on a terminal as one redrawn
// line, otherwise in the log. Internal.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include <cairn/actors/call_progress.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/runtime/observation/progress.hpp>
#include <cairn/runtime/observation/progress_text.hpp>

namespace cairn {

// The log gets one line for each phase after the join, however short the phase, and one line for
// the end. The display has a thread of its own, so that neither the call nor an actor waits for a
// terminal or a log sink. Does nothing if the thread cannot be started, or if the progress is
// neither shown on a terminal nor logged.
class ProgressDisplay {
 public:
  struct What {
    ShowProgress how = ShowProgress::kOff;
    int rank = 0;  // only rank 0 shows anything
    int ranks = 1;
    bool is_save = true;
    std::string checkpoint_id;
  };
  ProgressDisplay(What what, std::shared_ptr<const CallProgress> progress) noexcept;
  ~ProgressDisplay();  // like `end(false)`

  // Shows that the call has ended.
  void end(bool ok) noexcept;

 private:
  void show_until_end() noexcept;
  void show_phases();
  ShownProgress seen() const;

  const What what_;
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
