#include <cairn/storage/stores/tier_copier.hpp>

#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

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

std::string text_of_loss(const std::string& url, const std::string& save_id) {
  return url.substr(url.rfind('/') + 1) +
         " was saved to the near tier and lost before its copy to the far tier was complete, unless a process with another near "
         "tier still copies it: " +
         url + ", save " + save_id;
}

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

void TierCopier::add(Job job) {
  MutexLock lock(mutex_);
  for (const auto& other : jobs_)
    if (other->kind == job.kind && other->path == job.path && other->save_id == job.save_id &&
        (job.kind == Job::kPublish || other != running_))
      return;
  jobs_.push_back(std::make_shared<Job>(std::move(job)));
  start();
}

void TierCopier::add_checkpoint(const std::string& place, const std::string& save_id, bool resumed) {
  {
    MutexLock lock(mutex_);
    for (const std::string& path : {place, parent_of(place)})
      if (auto& known = runs_[path].known) known = true;
    given_up_.erase(place);
    for (auto known = damaged_.begin(); resumed && known != damaged_.end();)  // looks again
      known = is_within(known->first, place) ? damaged_.erase(known) : std::next(known);
  }
  add({Job::kPublish, place, save_id, 0, resumed});
}

std::optional<std::string> TierCopier::drop(Job::Kind kind, const std::string& path) {
  MutexLock lock(mutex_);
  std::list<std::shared_ptr<Job>> dropped;
  jobs_.remove_if([&](const std::shared_ptr<Job>& job) {
    const bool is_it = job->kind == kind && job->path == path;
    if (is_it) dropped.push_back(job);
    return is_it;
  });
  std::optional<std::string> save_id;
  if (!dropped.empty()) save_id = dropped.back()->save_id;
  const Time end = SteadyClock::now() + bounded_wait(options_.drain_patience);
  while (running_ && running_->kind == kind && running_->path == path && !stopping_) {
    if (!save_id) save_id = "";
    cancelled_ = true;
    changed_.notify_all();
    if (changed_.wait_until(mutex_, end)) continue;
    jobs_.splice(jobs_.end(), dropped);
    throw Error(ErrorCode::kUnavailable, "cannot end the copy of " + url(path) + ": the far tier does not answer");
  }
  given_up_.erase(path);
  damaged_.erase(path);
  return save_id;
}

void TierCopier::begin_saves(const std::string& run) {
  {
    MutexLock lock(mutex_);
    Run& known = runs_[run];
    known.is_saved_to = true;
    if (std::exchange(known.is_begun, true)) return;
  }
  add({Job::kBegin, run});
}

void TierCopier::expect_saves(const std::string& place) {
  MutexLock lock(mutex_);
  runs_[place].is_saved_to = true;
}

bool TierCopier::saves_to(const std::string& place) {
  MutexLock lock(mutex_);
  return runs_[place].is_saved_to || runs_[parent_of(place)].is_saved_to;
}

bool TierCopier::is_failing() const {
  MutexLock lock(mutex_);
  return has_failures() && SteadyClock::now() < last_failure_ + 2 * options_.retry_max;
}

bool TierCopier::is_queued(const std::string& place, const std::string& save_id) const {
  MutexLock lock(mutex_);
  return earliest([&](const Job& job) { return job.kind == Job::kPublish && job.path == place && job.save_id == save_id; }) !=
         nullptr;
}

bool TierCopier::has_failures() const {
  return earliest([](const Job& job) { return job.has_failed; }) != nullptr;
}

bool TierCopier::is_idle(const std::string& place) const {
  for (const auto& job : jobs_)  // a run that is being resumed may have copies for a place within it
    if (is_within(job->path, place) || (job->kind == Job::kBegin && is_within(place, job->path))) return false;
  return true;
}

std::vector<std::string> TierCopier::waiting_checkpoints(const std::string& place) const {
  std::set<std::string> places;
  for (const auto& job : jobs_)
    if (job->kind == Job::kPublish && is_within(job->path, place)) places.insert(url(job->path));
  for (const auto& [path, lost_id] : given_up_)
    if (lost_id.empty() && is_within(path, place)) places.insert(url(path));
  return {places.begin(), places.end()};
}

std::vector<LostCheckpoint> TierCopier::lost_checkpoints(const std::string& place) const {
  std::vector<LostCheckpoint> lost;
  for (const auto& [path, lost_id] : given_up_)
    if (!lost_id.empty() && is_within(path, place)) lost.push_back({url(path), lost_id});
  return lost;
}

bool TierCopier::wait(const std::string& place, std::optional<milliseconds> deadline, const std::function<bool()>& goes_on) const {
  MutexLock lock(mutex_);
  const Time begin = SteadyClock::now();
  while (!is_idle(place) && !stopping_) {
    const Time end =
        deadline ? begin + bounded_wait(*deadline) : std::max(begin, last_progress_) + bounded_wait(options_.drain_patience);
    if (SteadyClock::now() >= end) break;
    lock.unlock();
    const bool may_go_on = !goes_on || goes_on();
    lock.lock();
    if (!may_go_on) break;
    changed_.wait_until(mutex_, std::min<Time>(end, SteadyClock::now() + kAskInterval));
  }
  const std::vector<std::string> waiting = waiting_checkpoints(place);
  const std::vector<LostCheckpoint> lost = lost_checkpoints(place);
  if (is_idle(place) && waiting.empty() && lost.empty()) return true;
  const std::string why = last_error_;
  lock.unlock();
  if (deadline) return false;
  std::string text = "not everything was copied to the far tier from " + url(place) + " (" + why + ")";
  for (const std::string& checkpoint : waiting)
    text += (&checkpoint == &waiting.front() ? "; in the near tier only: " : " ") + checkpoint;
  for (const LostCheckpoint& one : lost) text += (&one == &lost.front() ? "; lost with the near tier: " : " ") + one.url;
  write_log(LogLevel::kError, -1, text);
  return false;
}

TierProgress TierCopier::progress() const {
  MutexLock lock(mutex_);
  TierProgress progress;
  for (const auto& job : jobs_) {
    progress.objects_waiting += job->kind == Job::kCopy ? 1 : 0;
    progress.bytes_waiting += job->bytes;
  }
  progress.objects_copied = objects_copied_;
  progress.bytes_copied = bytes_copied_;
  progress.checkpoints_waiting = waiting_checkpoints("");
  progress.checkpoints_lost = lost_checkpoints("");
  progress.last_error = last_error_;
  if (has_failures()) progress.failing_since = failing_since_;
  return progress;
}

// --- the thread ---

void TierCopier::start() {
  changed_.notify_all();
  if (stopping_ || thread_.joinable()) return;
  process_ = ::getpid();
  try {
    thread_ = start_thread("cairn-tiers", [this] { serve(); });
  } catch (const std::system_error& error) {
    last_error_ = error.what();  // the next job tries again: an error now would leave an attempt open
    return;
  }
  serving_ = true;
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

std::shared_ptr<TierCopier::Job> TierCopier::earliest(const std::function<bool(const Job&)>& is_wanted) const {
  std::shared_ptr<Job> found;
  for (const auto& job : jobs_)
    if (is_wanted(*job) && (!found || job->due < found->due)) found = job;
  return found;
}

void TierCopier::serve() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const Time now = SteadyClock::now();
    // Before anything is copied: this job first announces its checkpoint in the far tier.
    std::shared_ptr<Job> next = earliest([](const Job& job) { return job.kind == Job::kPublish && job.due == Time{}; });
    const bool is_new = next != nullptr;
    if (!is_new) {
      // A publication that was resumed waits for the copies of its objects.
      const auto may_run = [this](const Job& job) CAIRN_REQUIRES(mutex_) {
        return job.kind != Job::kCopy && !(job.resumed && earliest([&](const Job& other) {
          return other.kind == Job::kCopy && is_within(other.path, job.path);
        }));
      };
      next = earliest(may_run);
      const std::shared_ptr<Job> copy = earliest([](const Job& job) { return job.kind == Job::kCopy; });
      if (copy && (!next || next->due > now || (copy->due <= now && !is_job_next_))) next = copy;
    }
    const Time start = next ? std::max(retry_at_, next->due) : now;
    if (!next || (writers_ > 0 && !is_new))
      changed_.wait(mutex_);
    else if (start > now)
      changed_.wait_until(mutex_, start);
    else
      run(next);
  }
  serving_ = false;
  changed_.notify_all();
}

void TierCopier::note_failed_try(Job& job) {
  last_failure_ = SteadyClock::now();
  if (!has_failures()) {
    pause_ = milliseconds(0);
    failing_since_ = std::chrono::system_clock::now();
  }
  job.has_failed = true;
  pause_ = std::clamp(pause_ * 2, options_.retry_min, options_.retry_max);
  retry_at_ = last_failure_ + pause_;
}

void TierCopier::give_up(const Job& job, bool is_lost) {
  const std::string place = job.kind == Job::kCopy ? parent_of(job.path) : job.path;
  if (job.kind == Job::kCopy) damaged_[job.path] = last_error_;  // publish() reports it too, if this process publishes
  given_up_[place] = is_lost ? job.save_id : "";
  if (is_lost) runs_[parent_of(place)].is_begun = false;
}

void TierCopier::run(const std::shared_ptr<Job>& next) {
  const std::shared_ptr<Job> job = next;  // NOLINT(performance-unnecessary-copy-initialization): `next` may be in a queue
  running_ = job;
  cancelled_ = false;
  is_job_next_ = job->kind == Job::kCopy;  // otherwise no checkpoint would be published while objects keep coming
  Outcome outcome = Outcome::kNotNeeded;
  std::optional<Error> failure;
  mutex_.unlock();
  try {
    if (job->kind == Job::kCopy) outcome = copy_object(*job);
    if (job->kind == Job::kPublish) outcome = publish(*job);
    if (job->kind == Job::kBegin) begin(job->path);
    if (job->kind == Job::kEvict) evict(job->path);
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {
    failure = Error(ErrorCode::kUnavailable, error.what());
  }
  mutex_.lock();
  running_.reset();
  changed_.notify_all();
  const Time now = SteadyClock::now();
  if (job->kind == Job::kCopy && outcome == Outcome::kCopied) ++objects_copied_;
  if (outcome == Outcome::kCopied) last_progress_ = now;
  if (std::find(jobs_.begin(), jobs_.end(), job) == jobs_.end()) return;
  const Time::duration longest = std::min<Time::duration>(kLookInterval, options_.retry_max);
  job->due = now + std::max<Time::duration>(options_.retry_min, std::min<Time::duration>((now - job->changed) / 4, longest));
  if (cancelled_ || stopping_) return;  // an object was dropped: this job looks again
  const bool is_lost = outcome == Outcome::kLost;
  const bool goes_on = failure && (failure->code() != ErrorCode::kCorrupt || job->kind > Job::kPublish);
  if (outcome == Outcome::kWaits) return;
  // A record that was replaced while it was read looks damaged once, as a file may.
  if (failure && !goes_on && ++job->times_damaged < 2) return;
  if (failure || is_lost) {
    last_error_ = is_lost ? text_of_loss(url(job->path), job->save_id) : failure->what();
    std::string text = is_lost ? last_error_ : url(job->path) + " is not copied to the far tier: " + last_error_;
    if (goes_on) text = "cannot copy to the far tier of " + url("") + "; it is tried again: " + last_error_;
    const bool is_known = goes_on && has_failures();
    // Before the job ends: callers that stop waiting find the reason in the log.
    mutex_.unlock();
    if (!is_known) write_log(goes_on ? LogLevel::kWarning : LogLevel::kError, -1, text);
    mutex_.lock();
    if (std::find(jobs_.begin(), jobs_.end(), job) == jobs_.end()) return;
    if (goes_on) return note_failed_try(*job);
    give_up(*job, is_lost);
  }
  jobs_.remove(job);
  changed_.notify_all();
}

void TierCopier::check_wanted() {
  MutexLock lock(mutex_);
  while (writers_ > 0 && !stopping_ && !cancelled_) changed_.wait(mutex_);
  if (stopping_ || cancelled_) throw Error(ErrorCode::kCancelled, "the copy is not wanted any more");
}

}  // namespace cairn
