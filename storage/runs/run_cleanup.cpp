#include <cairn/storage/runs/run_cleanup.hpp>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/retention.hpp>

namespace cairn {
namespace {

// How often a wait looks whether a signal has come. A signal handler cannot end the wait.
constexpr std::chrono::milliseconds kSignalInterval{50};

}  // namespace

struct RunCleanup::Worker {
  Worker(const RunDirectory& of, RetentionPolicy with, int on_rank, GraceLeft left)
      : run(of), policy(std::move(with)), rank(on_rank), grace_left(std::move(left)) {}

  std::optional<std::chrono::milliseconds> grace() const CAIRN_REQUIRES(mutex) { return grace_left ? grace_left() : std::nullopt; }
  void stop() CAIRN_REQUIRES(mutex) {
    stopped = failed = true;
    next.reset();
  }
  // Waits for at most `deadline` and the grace period. Returns whether the condition holds.
  bool wait(std::optional<std::chrono::milliseconds> deadline, const std::function<bool()>& condition) CAIRN_REQUIRES(mutex) {
    const auto end = std::chrono::steady_clock::now() + bounded_wait(deadline.value_or(std::chrono::milliseconds::max()));
    while (!condition()) {
      const auto left = grace();
      const auto now = std::chrono::steady_clock::now();
      if (now >= end || (left && left->count() <= 0)) return false;
      auto until = grace_left ? std::min<std::chrono::steady_clock::time_point>(end, now + kSignalInterval) : end;
      if (left && *left < kSignalInterval) until = std::min<std::chrono::steady_clock::time_point>(until, now + *left);
      changed.wait_until(mutex, until);
    }
    return true;
  }

  // Returns whether the clean-up may change the place, and notes that it does.
  bool enter(const ObjectName& name) {
    MutexLock lock(mutex);
    // Asked before each removal, so that a signal stops the clean-up between two of them.
    if (!stopped && grace()) stop();
    if (!stopped) place = name;
    if (!stopped && !name.empty()) last_place = name;
    return !stopped;
  }

  void serve() noexcept {
    MutexLock lock(mutex);
    while (next) {
      const Work work = std::move(*next);
      next.reset();
      // This request came after the one that was stopped, or has seen no grace period yet.
      stopped = false;
      lock.unlock();
      clean_up(work);
      lock.lock();
      place.clear();
      changed.notify_all();
    }
    runs = false;
    changed.notify_all();
  }

  void clean_up(const Work& work) noexcept {
    try {
      std::vector<RetentionFault> found;
      bool has_thrown = false;
      try {
        if (has_nothing_to_do(work.saved)) return;
        const auto may_change = [this](const ObjectName& name) { return enter(name); };
        RunDirectory::Listing listing = run.list();
        const std::vector<ObjectName>& others = listing.without_record;
        const bool has_remains = std::any_of(others.begin(), others.end(), is_checkpoint_name);
        for (auto& [name, why] : run.remove_remains(work.busy, !ended_attempts, may_change, &listing)) found.push_back({name, why});
        if (!enter("")) return;
        // Not if the clean-up was stopped above: the next one then ends the attempts that are left.
        ended_attempts = true;
        if (!has_remains) settled.emplace();
        if (policy.keep_last) remove_unkept(work, std::move(listing), found);
      } catch (const std::exception& error) {
        has_thrown = true;
        found.push_back({"", error.what()});
      }
      log_new(found);
      if (!found.empty()) settled.reset();
      MutexLock lock(mutex);
      if (stopped) settled.reset();
      failed = has_thrown || stopped;
      faults = std::move(found);
    } catch (...) {  // out of memory: the faults cannot be recorded
    }
  }

  void remove_unkept(const Work& work, RunDirectory::Listing listing, std::vector<RetentionFault>& found) {
    known.damaged = work.damaged;
    for (const std::string& id : known.damaged) known.whole.erase(id);
    const Retention retention = look_at_retention(run, policy, std::move(listing), known);
    if (!retention.why_all.empty()) found.push_back({"", retention.why_all});
    if (retention.sound.size() < retention.infos.size()) settled.reset();  // the policy keeps others, too
    if (settled)
      std::copy_if(retention.infos.begin(), retention.infos.end(), std::back_inserter(*settled),
                   [&](const CheckpointInfo& info) { return retention.kept.count(info.name) > 0; });
    // From the oldest, so that a clean-up that is stopped leaves the newest.
    for (auto checkpoint = retention.checkpoints.rbegin(); checkpoint != retention.checkpoints.rend(); ++checkpoint) {
      if (retention.kept.count(checkpoint->name) > 0) continue;
      if (!enter(checkpoint->name)) return;
      try {
        const auto stays = run.remove(*checkpoint, [this](const ObjectName& name) { return enter(name); });
        if (!stays) write_log(LogLevel::kDebug, rank, "removed " + child_url(run.url(), checkpoint->name));
        // If it is pinned, or the clean-up was stopped, the checkpoint stays on purpose: no fault.
        else if (enter(checkpoint->name) && !run.is_pinned(checkpoint->name))
          found.push_back({checkpoint->name, *stays});
      } catch (const std::exception& error) {
        // One that cannot be removed does not keep the others.
        found.push_back({checkpoint->name, error.what()});
      }
    }
  }

  // Returns whether there is nothing to do, as far as this process knows. Then adds `saved` to
  // `settled`.
  bool has_nothing_to_do(const std::optional<RunCheckpoint>& saved) {
    auto all = std::exchange(settled, std::nullopt);
    if (!saved || !all) return false;
    all->insert(all->begin(), info_of(run, *saved));
    if (policy.keep_last && kept_by(policy, *all).size() < all->size()) return false;
    settled = std::move(all);
    return true;
  }

  void log_new(const std::vector<RetentionFault>& found) const {
    MutexLock lock(mutex);
    // A copy, because the sink of the log is user code and runs without the lock.
    const std::vector<RetentionFault> before = faults;
    lock.unlock();
    for (const RetentionFault& fault : found) {
      // A fault that stays is logged once, not after every save.
      const auto is_it = [&](const RetentionFault& old) { return old.name == fault.name && old.why == fault.why; };
      if (std::none_of(before.begin(), before.end(), is_it))
        write_log(LogLevel::kWarning, rank,
                  "cannot remove " + (fault.name.empty() ? "old checkpoints of " + run.url() : child_url(run.url(), fault.name)) +
                      ": " + fault.why);
    }
  }

  const RunDirectory run;
  const RetentionPolicy policy;
  const int rank;
  KnownCheckpoints known;  // of the thread that cleans up
  // The checkpoints that the last clean-up has kept, the latest first, and those saved since, if it
  // has left nothing else. Of the thread that cleans up.
  std::optional<std::vector<CheckpointInfo>> settled;
  bool ended_attempts = false;  // ended once only: two managers that repeated it would fence each other's saves for ever

  mutable Mutex mutex;
  CondVar changed;
  GraceLeft grace_left CAIRN_GUARDED_BY(mutex);
  bool runs CAIRN_GUARDED_BY(mutex) = false;
  // The running clean-up, or the one that was pending, has seen a grace period. It stays stopped
  // even if that ends: a save has not waited for it.
  bool stopped CAIRN_GUARDED_BY(mutex) = false;
  std::optional<Work> next CAIRN_GUARDED_BY(mutex);
  ObjectName place CAIRN_GUARDED_BY(mutex);       // that the running clean-up may be changing
  ObjectName last_place CAIRN_GUARDED_BY(mutex);  // stays after the removal, for traces
  std::vector<RetentionFault> faults CAIRN_GUARDED_BY(mutex);
  bool failed CAIRN_GUARDED_BY(mutex) = false;
};

RunCleanup::RunCleanup(const RunDirectory& run, RetentionPolicy policy, int rank, GraceLeft grace_left)
    : worker_(std::make_shared<Worker>(run, std::move(policy), rank, std::move(grace_left))) {}

RunCleanup::~RunCleanup() {
  wait();
  MutexLock lock(worker_->mutex);
  // After a grace period it may still be running. It must remove nothing more without its manager.
  worker_->stop();
  worker_->grace_left = nullptr;  // it belongs to the manager
  const bool ended = !worker_->runs;
  lock.unlock();
  if (!thread_.joinable()) return;
  if (ended) {
    thread_.join();
    return;
  }
  thread_.detach();
  write_log(LogLevel::kWarning, worker_->rank,
            "an old checkpoint of " + worker_->run.url() + " is still being removed after the grace period of a signal");
}

void RunCleanup::start(std::set<ObjectName> busy, std::set<std::string> damaged, std::optional<RunCheckpoint> saved) {
  MutexLock lock(worker_->mutex);
  // A request that has not begun is replaced: the later one knows more.
  worker_->next = Work{std::move(busy), std::move(damaged), std::move(saved)};
  if (worker_->runs) return;
  worker_->runs = true;
  if (thread_.joinable()) thread_.join();  // the thread has ended, or is about to
  try {
    thread_ = start_thread("cairn-cleanup", [worker = worker_] { worker->serve(); });
  } catch (const std::exception&) {  // no thread, or no memory for one
    lock.unlock();
    worker_->serve();
  }
}

bool RunCleanup::take(const std::vector<RunCheckpoint>& all) {
  std::vector<CheckpointInfo> infos;
  infos.reserve(all.size());
  for (const RunCheckpoint& checkpoint : all) infos.push_back(info_of(worker_->run, checkpoint));
  if (worker_->policy.keep_last && kept_by(worker_->policy, infos).size() < infos.size()) return false;
  worker_->settled = std::move(infos);
  return worker_->ended_attempts = true;  // there were none in places without a record
}

void RunCleanup::wait(std::optional<std::chrono::milliseconds> deadline) {
  MutexLock lock(worker_->mutex);
  worker_->wait(deadline, [this]() CAIRN_REQUIRES(worker_->mutex) { return !worker_->runs; });
}

std::function<void(const std::string& checkpoint_id, StoreObserver* observer)> RunCleanup::waiter() const {
  return [worker = worker_](const std::string& checkpoint_id, StoreObserver* observer) {
    const MonotonicTime begin = system_clock().now();
    MutexLock lock(worker->mutex);
    const bool is_free = worker->wait(std::nullopt, [&]() CAIRN_REQUIRES(worker->mutex) {
      // In a grace period a save has no time for removals. It stops them, and then waits only until
      // its own place is left alone.
      if (worker->runs && worker->grace()) worker->stop();
      if (!worker->runs) return true;
      return worker->stopped && (worker->place.empty() || child_url(worker->run.url(), worker->place) != checkpoint_id);
    });
    if (!is_free)
      throw Error(ErrorCode::kDeadline,
                  "an old checkpoint was not removed from " + checkpoint_id + " before the grace period of a signal was over");
    const Duration waited = system_clock().now() - begin;
    if (observer == nullptr || waited < observer->duration_min()) return;
    const std::string url = worker->last_place.empty() ? worker->run.url() : child_url(worker->run.url(), worker->last_place);
    observer->on_operation({"remove_old", url, 0, waited, {}, {}});
  };
}

bool RunCleanup::has_failed() const {
  MutexLock lock(worker_->mutex);
  return worker_->failed;
}

std::vector<RetentionFault> RunCleanup::faults() const {
  MutexLock lock(worker_->mutex);
  return worker_->faults;
}

}  // namespace cairn
