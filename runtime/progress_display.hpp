// Shows people how far one save or load is, while it lives: on a terminal as one line that is redrawn, else in the log. Internal.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <cairn/actors/call_progress.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/runtime/progress_text.hpp>
#include <cairn/runtime/world.hpp>

namespace cairn {

// What it shows is the same whatever happens to it: a line of the log for each phase that the call has come to, and one for its end. It
// has a thread of its own, so that neither the call nor an actor waits for a terminal or a sink. Where no thread is to be had, or
// nobody would see anything, it does nothing.
class ProgressDisplay {
 public:
  struct What {
    ShowProgress how = ShowProgress::kOff;
    int rank = 0;  // of others than 0 nothing is shown
    int ranks = 1;
    bool is_save = true;
    std::string checkpoint_id;
  };
  ProgressDisplay(What what, std::shared_ptr<const CallProgress> progress) noexcept;
  ~ProgressDisplay();  // as if the call had failed
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  // The call has ended.
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

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace cairn
