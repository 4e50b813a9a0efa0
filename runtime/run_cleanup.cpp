#include <cairn/runtime/run_cleanup.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <pthread.h>

#include <cairn/base/log.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/runtime/retention.hpp>

namespace cairn {

RunCleanup::~RunCleanup() {
  wait();
  if (thread_.joinable()) thread_.join();
}

void RunCleanup::start(std::set<ObjectName> busy, std::set<std::string> damaged) {
  std::unique_lock lock(mutex_);
  next_ = Work{std::move(busy), std::move(damaged)};
  cut_short_ = false;
  if (runs_) return;
  runs_ = true;
  if (thread_.joinable()) thread_.join();  // the thread has ended, or is about to
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { serve(); });
    pthread_setname_np(thread_.native_handle(), "cairn-cleanup");
  } catch (const std::exception&) {  // no thread, or no memory for one
    lock.unlock();
    serve();
  }
}

void RunCleanup::cut_short() {
  std::lock_guard lock(mutex_);
  cut_short_ = true;
  next_.reset();
}

void RunCleanup::wait(std::optional<std::chrono::milliseconds> deadline) {
  std::unique_lock lock(mutex_);
  const auto is_idle = [this] { return !runs_; };
  if (deadline)
    changed_.wait_for(lock, bounded_wait(*deadline), is_idle);
  else
    changed_.wait(lock, is_idle);
}

bool RunCleanup::has_failed() const {
  std::lock_guard lock(mutex_);
  return failed_;
}

std::vector<CheckpointManager::RetentionFault> RunCleanup::faults() const {
  std::lock_guard lock(mutex_);
  return faults_;
}

void RunCleanup::serve() noexcept {
  std::unique_lock lock(mutex_);
  while (next_) {
    const Work work = std::move(*next_);
    next_.reset();
    lock.unlock();
    clean_up(work);
    lock.lock();
  }
  runs_ = false;
  changed_.notify_all();
}

void RunCleanup::clean_up(const Work& work) noexcept {
  try {
    std::vector<RetentionFault> found;
    bool failed = false;
    try {
      for (auto& [name, why] : run_.remove_remains(work.busy, !ended_attempts_)) found.push_back({name, why});
      ended_attempts_ = true;
      if (policy_.keep_last) remove_unkept(work, found);
    } catch (const std::exception& error) {
      failed = true;
      found.push_back({"", error.what()});
    }
    log_new(found);
    std::lock_guard lock(mutex_);
    failed_ = failed;
    faults_ = std::move(found);
  } catch (...) {  // out of memory: the faults cannot be recorded
  }
}

void RunCleanup::remove_unkept(const Work& work, std::vector<RetentionFault>& found) const {
  const Retention retention = look_at_retention(run_, policy_, work.damaged);
  for (auto checkpoint = retention.checkpoints.rbegin(); checkpoint != retention.checkpoints.rend(); ++checkpoint) {
    if (cut_short_) return;
    if (retention.kept.count(checkpoint->name) > 0) continue;
    try {
      if (run_.is_pinned(checkpoint->name)) continue;
      if (const auto stays = run_.remove(*checkpoint))
        found.push_back({checkpoint->name, *stays});
      else
        write_log(LogLevel::kDebug, rank_, "removed " + child_url(run_.url(), checkpoint->name));
    } catch (const std::exception& error) {
      found.push_back({checkpoint->name, error.what()});
    }
  }
}

void RunCleanup::log_new(const std::vector<RetentionFault>& found) const {
  const std::vector<RetentionFault> before = faults();
  for (const RetentionFault& fault : found) {
    const bool known = std::any_of(before.begin(), before.end(),
                                   [&](const RetentionFault& old) { return old.name == fault.name && old.why == fault.why; });
    if (!known)
      write_log(LogLevel::kWarning, rank_,
                "cannot remove " + (fault.name.empty() ? "old checkpoints of " + run_.url() : child_url(run_.url(), fault.name)) + ": " +
                    fault.why);
  }
}

}  // namespace cairn
