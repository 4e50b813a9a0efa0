#include <cairn/storage/stores/tier_copier.hpp>

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <pthread.h>

#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kAskInterval{100};
// How long the end of a process waits for an operation of a store that hangs.
constexpr milliseconds kStopDeadline = std::chrono::seconds(10);

bool is_within(const std::string& path, const std::string& place) {
  return path.compare(0, place.size(), place) == 0 && (path.size() == place.size() || path[place.size()] == '/');
}

}  // namespace

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

TierCopier::TierCopier(std::string name, TierOptions options)
    : name_(std::move(name)), options_(std::move(options)), far_root_(far("")) {}

TierCopier::~TierCopier() { stop(); }

std::shared_ptr<Store> TierCopier::near(const std::string& place) const {
  return open_store(place.empty() ? options_.near_url : child_url(options_.near_url, place.substr(1)));
}

std::shared_ptr<Store> TierCopier::far(const std::string& place) const {
  return open_store(place.empty() ? options_.far_url : child_url(options_.far_url, place.substr(1)));
}

// --- the queue ---

void TierCopier::writer_opened() {
  MutexLock lock(mutex_);
  ++writers_;
}

void TierCopier::writer_closed() {
  MutexLock lock(mutex_);
  if (--writers_ == 0) changed_.notify_all();
}

void TierCopier::add_object(const std::string& path, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  objects_.push_back({path, bytes});
  start();
}

bool TierCopier::drop_object(const std::string& path) {
  MutexLock lock(mutex_);
  damaged_.erase(path);
  unfinished_.erase(path);
  const auto first = std::remove_if(objects_.begin(), objects_.end(), [&](const Object& object) { return object.path == path; });
  bool was_waiting = first != objects_.end();
  objects_.erase(first, objects_.end());
  while (copying_.path == path && !stopping_) {
    was_waiting = cancelled_ = true;
    changed_.notify_all();
    changed_.wait(mutex_);
  }
  return was_waiting;
}

void TierCopier::add_checkpoint(const std::string& place, const std::string& save_id, bool resumed) {
  MutexLock lock(mutex_);
  for (const auto& job : jobs_)
    if (job->kind == Job::kPublish && job->place == place && job->save_id == save_id) return;
  for (const std::string& run : {place, parent_of(place)})
    if (const auto known = known_.find(run); known != known_.end()) known->second = true;
  given_up_.erase(place);
  jobs_.push_back(std::make_shared<Job>(Job{Job::kPublish, place, save_id, resumed, {}, SIZE_MAX, SteadyClock::now(), 0}));
  start();
}

std::optional<std::string> TierCopier::drop_checkpoint(const std::string& place) {
  MutexLock lock(mutex_);
  std::optional<std::string> save_id;
  given_up_.erase(place);
  const auto is_of_place = [&](const std::shared_ptr<Job>& job) { return job->kind == Job::kPublish && job->place == place; };
  for (const auto& job : jobs_)
    if (is_of_place(job)) save_id = job->save_id;
  jobs_.remove_if(is_of_place);
  while (running_ && is_of_place(running_) && !stopping_) {
    cancelled_ = true;
    changed_.notify_all();
    changed_.wait(mutex_);
  }
  return save_id;
}

void TierCopier::begin_saves(const std::string& run) {
  MutexLock lock(mutex_);
  saved_to_.insert(run);
  if (!begun_.insert(run).second && lost_in_.count(run) == 0) return;
  for (const auto& job : jobs_)
    if (job->kind == Job::kBegin && job->place == run && job != running_) return;
  jobs_.push_back(std::make_shared<Job>(Job{Job::kBegin, run, "", false, {}, SIZE_MAX, {}, 0}));
  start();
}

void TierCopier::expect_saves(const std::string& place) {
  MutexLock lock(mutex_);
  saved_to_.insert(place);
}

bool TierCopier::saves_to(const std::string& place) const {
  MutexLock lock(mutex_);
  return saved_to_.count(place) > 0 || saved_to_.count(parent_of(place)) > 0;
}

void TierCopier::evict_later(const std::string& run) {
  MutexLock lock(mutex_);
  for (const auto& job : jobs_)
    if (job->kind == Job::kEvict && job->place == run && job != running_) return;
  jobs_.push_back(std::make_shared<Job>(Job{Job::kEvict, run, "", false, {}, SIZE_MAX, {}, 0}));
  start();
}

bool TierCopier::is_failing() const {
  MutexLock lock(mutex_);
  return failing_since_ && SteadyClock::now() < last_failure_ + 2 * options_.retry_max;
}

bool TierCopier::is_idle(const std::string& place) const {
  if (!logs_.empty()) return false;  // callers that stop waiting find the reason in the log
  if (!copying_.path.empty() && is_within(copying_.path, place)) return false;
  for (const Object& object : objects_)
    if (is_within(object.path, place)) return false;
  for (const auto& job : jobs_)  // a run that is being resumed may have copies for a place within it
    if (is_within(job->place, place) || (job->kind == Job::kBegin && is_within(place, job->place))) return false;
  return true;
}

std::vector<std::string> TierCopier::waiting_checkpoints(const std::string& place) const {
  std::set<std::string> places;
  for (const auto& job : jobs_)
    if (job->kind == Job::kPublish && is_within(job->place, place)) places.insert(url(job->place));
  for (const std::string& damaged : given_up_)
    if (is_within(damaged, place)) places.insert(url(damaged));
  return {places.begin(), places.end()};
}

bool TierCopier::wait(const std::string& place, std::optional<milliseconds> deadline, const std::function<bool()>& goes_on) const {
  MutexLock lock(mutex_);
  const Time begin = SteadyClock::now();
  while (!is_idle(place) && !stopping_) {
    const Time end =
        deadline ? begin + bounded_wait(*deadline) : std::max(begin, last_progress_) + bounded_wait(options_.drain_patience);
    if (SteadyClock::now() >= end) break;
    if (!goes_on) {
      changed_.wait_until(mutex_, end);
      continue;
    }
    lock.unlock();
    const bool may_go_on = goes_on();
    lock.lock();
    if (!may_go_on) break;
    changed_.wait_until(mutex_, std::min<Time>(end, SteadyClock::now() + kAskInterval));
  }
  const std::vector<std::string> waiting = waiting_checkpoints(place);
  if (is_idle(place) && waiting.empty()) return true;
  const std::string why = last_error_;
  lock.unlock();
  if (deadline) return false;
  std::string text = "not everything was copied to the far tier from " + url(place) + " (" + why + "); in the near tier only:";
  for (const std::string& checkpoint : waiting) text += " " + checkpoint;
  write_log(LogLevel::kError, -1, text);
  return false;
}

TierProgress TierCopier::progress() const {
  MutexLock lock(mutex_);
  TierProgress progress;
  progress.objects_waiting = objects_.size() + (copying_.path.empty() ? 0 : 1);
  progress.bytes_waiting = copying_.bytes;
  for (const Object& object : objects_) progress.bytes_waiting += object.bytes;
  progress.objects_copied = objects_copied_;
  progress.bytes_copied = bytes_copied_;
  progress.checkpoints_waiting = waiting_checkpoints("");
  progress.last_error = last_error_;
  progress.failing_since = failing_since_;
  return progress;
}

// --- the thread ---

void TierCopier::start() {
  changed_.notify_all();
  if (stopping_ || thread_.joinable()) return;
  const SignalsBlocked blocked;
  process_ = ::getpid();
  serving_ = true;
  thread_ = std::thread([this] { serve(); });
  pthread_setname_np(thread_.native_handle(), "cairn-tiers");
}

void TierCopier::stop() noexcept {
  if (process_ != 0 && process_ != ::getpid()) return;  // in a forked child: the thread is the parent's
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  std::thread thread = std::move(thread_);
  const bool has_ended = changed_.wait_for(mutex_, kStopDeadline, [this]() CAIRN_REQUIRES(mutex_) { return !serving_; });
  lock.unlock();
  if (!thread.joinable()) return;
  if (has_ended)
    thread.join();
  else
    thread.detach();
}

void TierCopier::serve() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    write_logs();
    const Time now = SteadyClock::now();
    const auto next = std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) { return a->due < b->due; });
    // Before anything is copied: this job first announces its checkpoint in the far tier.
    const bool is_new = next != jobs_.end() && (*next)->kind == Job::kPublish && (*next)->due == Time{};
    if (is_new && retry_at_ <= now)
      run_job(*next);
    else if (writers_ > 0)
      changed_.wait(mutex_);
    else if (retry_at_ > now)
      changed_.wait_until(mutex_, retry_at_);
    else if (next != jobs_.end() && (*next)->due <= now && (objects_.empty() || is_job_next_))
      run_job(*next);
    else if (!objects_.empty())
      run_object();
    else if (next != jobs_.end())
      changed_.wait_until(mutex_, (*next)->due);
    else
      changed_.wait(mutex_);
  }
  write_logs();
  serving_ = false;
  changed_.notify_all();
}

void TierCopier::write_logs() {
  if (logs_.empty()) return;
  while (!logs_.empty()) {
    const auto [level, text] = logs_.front();
    mutex_.unlock();
    write_log(level, -1, text);
    mutex_.lock();
    logs_.erase(logs_.begin());
  }
  changed_.notify_all();
}

void TierCopier::note_success(bool has_moved) {
  failing_since_.reset();
  pause_ = milliseconds(0);
  if (has_moved) last_progress_ = SteadyClock::now();
}

void TierCopier::note_failed_try(const std::string& what) {
  last_error_ = what;
  last_failure_ = SteadyClock::now();
  if (!failing_since_) {
    failing_since_ = std::chrono::system_clock::now();
    logs_.emplace_back(LogLevel::kWarning, "cannot copy to the far tier of " + url("") + "; it is tried again: " + what);
  }
  pause_ = std::clamp(pause_ * 2, options_.retry_min, options_.retry_max);
  retry_at_ = SteadyClock::now() + pause_;
}

void TierCopier::give_up(const std::string& place, const std::string& what) {
  last_error_ = what;
  given_up_.insert(place);
  logs_.emplace_back(LogLevel::kError, url(place) + " is not copied to the far tier: " + what);
}

void TierCopier::run_object() {
  Object object = std::move(objects_.front());
  objects_.pop_front();
  copying_ = object;
  cancelled_ = false;
  Copied copied = Copied::kGone;
  std::optional<Error> failure;
  mutex_.unlock();
  try {
    copied = copy_object(object.path);
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure = Error(ErrorCode::kUnavailable, error.what());
  }
  mutex_.lock();
  copying_ = {};
  changed_.notify_all();
  is_job_next_ = true;  // otherwise no checkpoint would be published while objects keep coming
  if (cancelled_) return;
  if (failure && failure->code() == ErrorCode::kCancelled) return objects_.push_back(std::move(object));  // the process ends
  if (failure && failure->code() == ErrorCode::kCorrupt) {
    last_error_ = failure->what();
    damaged_[object.path] = last_error_;  // publish() reports it too, if this process publishes
    given_up_.insert(parent_of(object.path));
    logs_.emplace_back(LogLevel::kError, url(object.path) + " is not copied to the far tier: " + last_error_);
    return;
  }
  if (failure) {
    objects_.push_back(std::move(object));
    return note_failed_try(failure->what());
  }
  note_success(copied != Copied::kBusy);
  if (copied == Copied::kYes) ++objects_copied_;
  if (copied != Copied::kBusy) return;
  objects_.push_back(std::move(object));
  retry_at_ = SteadyClock::now() + options_.retry_min;
}

void TierCopier::run_job(const std::shared_ptr<Job>& next) {
  const std::shared_ptr<Job> job = next;
  running_ = job;
  cancelled_ = false;
  is_job_next_ = false;
  bool has_ended = true;
  const std::size_t missing_before = job->missing;
  std::optional<Error> failure;
  mutex_.unlock();
  try {
    if (job->kind == Job::kPublish)
      has_ended = publish(*job);
    else if (job->kind == Job::kBegin)
      begin(job->place);
    else
      evict(job->place);
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure = Error(ErrorCode::kUnavailable, error.what());
  }
  mutex_.lock();
  running_.reset();
  copying_ = {};
  changed_.notify_all();
  const auto listed = std::find(jobs_.begin(), jobs_.end(), job);
  if (listed == jobs_.end()) return;
  const Time now = SteadyClock::now();
  job->due = now + std::max<Time::duration>(options_.retry_min, std::min<Time::duration>((now - job->changed) / 4, kLookInterval));
  if (cancelled_ || stopping_) return;  // an object was dropped: this job looks again
  // A record that was replaced while it was read looks damaged once.
  if (failure && failure->code() == ErrorCode::kCorrupt && job->kind == Job::kPublish) {
    if (++job->times_damaged < 2) return;
    give_up(job->place, failure->what());
    jobs_.erase(listed);
  } else if (failure) {
    note_failed_try(failure->what());
  } else {
    note_success(has_ended || job->missing < missing_before);
    if (has_ended) jobs_.erase(listed);
  }
}

void TierCopier::check_wanted() {
  MutexLock lock(mutex_);
  while (writers_ > 0 && !stopping_ && !cancelled_) changed_.wait(mutex_);
  if (stopping_ || cancelled_) throw Error(ErrorCode::kCancelled, "the copy is not wanted any more");
}

}  // namespace cairn
