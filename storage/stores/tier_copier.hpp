// Copies from the near to the far tier of one pair what this process has written. Internal.
//
// The far tier is a store like any other: a checkpoint exists there once its record does. The
// process that published save S in the near tier does this in the far one:
//
//  1  open attempt S: it tells that S existed in the near tier
//  2  wait until all files of the record are there. Each process copies those it wrote, once the
//     attempt or its fence is there. After a restart, this process copies what the earlier ones
//     left
//  3  fence all other attempts: an older save can no longer be published. End if the far tier has
//     a record that is not older
//  4  look whether the near tier's record still names S; if not, end. Fence the saves that the far
//     tier's record names and this one does not
//  5  publish the near tier's record
//  6  remove the data files of fenced saves, and of retired ones that the near tier has removed
//
// So no data file is in the far tier without an attempt, a fence or a record of its save. A fence
// is cleared after the last file of its save, or when a record names the save. A copy may end after
// its save was removed and the fence cleared: a look after the copy fences the save again and
// removes the file.
//
// Removing a checkpoint (TieredStore::retract) fences its save in the far tier, which marks it as
// removed, then removes the near record, fences the attempts in the far tier, and removes the far
// record, in this order. So either step 5 comes before the last fence, and the record is removed
// after it, or step 5 fails. If step 4 saw the near record, its removal came later, and the last
// fence later still. `clear_far` removes the marks after the data.
//
// An absent near record does not prove a removal: the near tier may have been lost. If the attempt
// is still open in the far tier, the checkpoint was lost. The attempt stays as evidence of the loss
// until this process saves to the run. Data files are removed from the far tier if their save was
// fenced there, or if the record, read whole in both tiers, retires it and the near tier has
// removed it.
//
// An attempt of this process that others have fenced is cleared and opened again as long as the
// near record names S. Steps 1 to 5 may run in several processes at once: one of them publishes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/tiers.hpp>

namespace cairn {

// Directory stores end the names of unfinished objects so (CreateOptions::appears_whole).
inline constexpr const char* kUnfinishedEnd = ".part";

// Returns a path without its last part: the place of an object, or the run of a place.
std::string parent_of(const std::string& path);

// Returns the log text about a lost checkpoint.
std::string text_of_loss(const std::string& url, const std::string& save_id);

std::shared_ptr<Store> open_tiered_store(const std::string& url);

// Stops the copies of this process as its death would, and forgets the pair. For tests.
void forget_tier(const std::string& name);

// Places and objects are named by their path below the URLs of the pair: "/run/step_1",
// "/run/step_1/.pinned". The path of the pair's root is "". Thread-safe.
class TierCopier {
 public:
  TierCopier(std::string name, TierOptions options);
  ~TierCopier();  // stops the thread; copies in progress are discarded

  std::string url(const std::string& path) const { return "tiered://" + name_ + path; }
  std::shared_ptr<Store> near(const std::string& place) const;
  std::shared_ptr<Store> far(const std::string& place) const;

  // No object is copied while this process has a writer open.
  void writer_opened();
  void writer_closed();
  // `donor`: an object with the same bytes that may be in the far tier, which then links to it.
  void add_object(const std::string& path, std::uint64_t bytes, const std::string& donor = "") {
    add({Job::kCopy, path, "", bytes, false, donor});
  }
  // Forgets an object. When this returns, no copy of it by this process is in progress. Throws
  // kUnavailable if an operation of the far tier does not end within `drain_patience`. Returns
  // whether the object was queued or in progress.
  bool drop_object(const std::string& path) { return drop(Job::kCopy, path).has_value(); }
  void add_checkpoint(const std::string& place, const std::string& save_id, bool resumed);
  // Likewise for the publication of a checkpoint. Returns its save id if it was not finished.
  std::optional<std::string> drop_checkpoint(const std::string& place) { return drop(Job::kPublish, place); }

  // Opens an attempt in the near tier. Eviction leaves its place alone from then on.
  void begin_attempt(Store& near, const std::string& save_id);
  // See resume_copies.
  std::vector<LostCheckpoint> resume(const std::string& run);
  // Tells that this process saves to a place, or to places below it. `begin_saves` also queues
  // `begin`, when it is called first and after lost checkpoints were found: resumes the run, unless
  // this process has done so, and removes from the far tier what lost checkpoints left.
  void expect_saves(const std::string& place);
  void begin_saves(const std::string& run);
  bool saves_to(const std::string& place);

  // Returns whether the near tier alone tells what is in the run of `place`: this process has seen
  // that it has the record of every checkpoint in the far tier, and it was not lost since. Then
  // saves go on while the far tier is unavailable.
  bool is_known(const std::string& place);
  // Returns whether the far tier has failed just now. Asking it would only cost time.
  bool is_failing() const;
  // See is_copied in tiers.hpp.
  bool is_copied(const std::string& place, const std::string& save_id);
  // Removes from the far tier the data files of fenced saves at a place, their marks, and the place
  // if nothing else is in it.
  void clear_far(const std::string& place);

  bool wait(const std::string& place, std::optional<std::chrono::milliseconds> deadline,
            const std::function<bool()>& goes_on) const;
  TierProgress progress() const;
  void stop() noexcept;

 private:
  using Time = std::chrono::steady_clock::time_point;
  // The unfinished copy of an object in the far tier.
  struct Unfinished {
    bool is_own = false;  // left by a copy of this process that failed
    std::optional<std::uint64_t> bytes;
    std::uint64_t furthest = 0;  // bytes that a try of this or another process has written
    Time looked{};
    Time changed{};
    int takeovers = 0;  // by this process
  };
  struct Job {
    enum Kind : std::uint8_t { kCopy, kPublish, kBegin, kEvict } kind = kCopy;
    std::string path;          // of the object, of the checkpoint's place, or of the run
    std::string save_id = {};  // of the checkpoint
    std::uint64_t bytes = 0;   // of the object
    bool resumed = false;      // another process saved the checkpoint, and may have ended
    std::string donor = {};    // of the object, or ""
    Time due = {};             // {}: not tried yet
    bool has_failed = false;   // a try failed: the job is failing until it has ended
    bool is_announced = false;
    bool is_gone = false;                             // the near tier had no record at the last look
    std::size_t missing = SIZE_MAX;                   // the fewest files found missing in the far tier so far
    Time changed = std::chrono::steady_clock::now();  // when their number changed
    int times_damaged = 0;
    Unfinished unfinished = {};
  };
  enum class Outcome : std::uint8_t { kCopied, kWaits, kNotNeeded, kLost };
  static constexpr int kTakeoversMax = 7;  // no further doubling
  // The longest pause between two looks at what other processes have copied.
  static constexpr std::chrono::seconds kLookInterval{5};
  // Known about a run.
  struct Run {
    bool is_saved_to = false;  // by this process; also of places
    bool is_begun = false;     // `begin` was queued, and no lost checkpoint was found since
    bool is_resumed = false;
    std::optional<bool> known;  // present: see is_known; whether the near tier has a checkpoint
  };

  void add(Job job);
  std::optional<std::string> drop(Job::Kind kind, const std::string& path);
  void start() CAIRN_REQUIRES(mutex_);
  void serve();
  std::shared_ptr<Job> earliest(const std::function<bool(const Job&)>& is_wanted) const CAIRN_REQUIRES(mutex_);
  void run(const std::shared_ptr<Job>& job) CAIRN_REQUIRES(mutex_);
  void note_failed_try(Job& job) CAIRN_REQUIRES(mutex_);
  // Marks a checkpoint as lost or damaged in the near tier. It is not copied until it is saved
  // again.
  void give_up(const Job& job, bool is_lost) CAIRN_REQUIRES(mutex_);
  bool is_queued(const std::string& place, const std::string& save_id) const;  // a checkpoint
  bool has_failures() const CAIRN_REQUIRES(mutex_);
  bool is_idle(const std::string& place) const CAIRN_REQUIRES(mutex_);
  std::vector<std::string> waiting_checkpoints(const std::string& place) const CAIRN_REQUIRES(mutex_);
  std::vector<LostCheckpoint> lost_checkpoints(const std::string& place) const CAIRN_REQUIRES(mutex_);

  // Called without the lock, on the thread.
  void check_wanted();
  // Returns whether this process may remove the unfinished copy of an object, which has `bytes`
  // now: it is this process's, or has not grown for `takeover_after`. This time doubles with each
  // takeover, because the copy may still be written or synced. Then its process gets kNotFound from
  // its sync, and becomes the one that waits.
  bool may_take_over(Unfinished& seen, std::uint64_t bytes);
  std::unique_ptr<ObjectWriter> begin_copy(Job& job, Store& far, const CreateOptions& options);
  Outcome copy_object(Job& job);
  Outcome publish(Job& job);
  bool announce(const std::string& save_id, Store& far);
  bool has_near_run(const std::string& place) const;
  Outcome judge_absence(Job& job, Store& far);
  std::size_t queue_missing(const Job& job, Store& near, Store& far, const Metadata& metadata);
  void sweep(const std::string& place);
  // Returns the head of the near tier's record. Throws kCorrupt for a damaged record, including a
  // truncated one, which looks like another program's.
  static std::optional<CommitHead> near_head(Store& near);
  // Returns nothing for a damaged record in the far tier: the next publication replaces it.
  static std::optional<CommitHead> far_head(Store& far);
  void evict(const std::string& run);
  void drop_stale(const std::string& place, const std::string& save_id);
  void drop_data(const std::string& place, const std::string& save_id);
  void begin(const std::string& run);
  std::vector<std::string> ended_attempts(const std::string& place);
  void end_lost_copies(const std::string& run);

  const std::string name_;
  const TierOptions options_;
  const std::shared_ptr<Store> far_root_;  // keeps the connections of a bucket
  std::atomic<pid_t> process_{0};          // that has started the thread

  Mutex near_mutex_;  // held while an attempt is opened in the near tier, or a place is evicted from it

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::thread thread_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  bool serving_ CAIRN_GUARDED_BY(mutex_) = false;    // the thread runs
  bool cancelled_ CAIRN_GUARDED_BY(mutex_) = false;  // the copy in progress is not wanted any more
  std::size_t writers_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::list<std::shared_ptr<Job>> jobs_ CAIRN_GUARDED_BY(mutex_);  // includes the one that is running
  std::shared_ptr<Job> running_ CAIRN_GUARDED_BY(mutex_);
  bool is_job_next_ CAIRN_GUARDED_BY(mutex_) = false;  // an object was copied last: objects and other jobs take turns
  // By place: the save id of a lost checkpoint; "" for one that is damaged in the near tier.
  std::map<std::string, std::string> given_up_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, std::string> damaged_ CAIRN_GUARDED_BY(mutex_);  // objects of the near tier, and why
  std::map<std::string, Run> runs_ CAIRN_GUARDED_BY(mutex_);             // by path
  std::size_t objects_copied_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_copied_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string last_error_ CAIRN_GUARDED_BY(mutex_);
  std::chrono::system_clock::time_point failing_since_ CAIRN_GUARDED_BY(mutex_);  // if `has_failures`
  std::chrono::milliseconds pause_ CAIRN_GUARDED_BY(mutex_){0};
  Time retry_at_ CAIRN_GUARDED_BY(mutex_){};
  Time last_progress_ CAIRN_GUARDED_BY(mutex_){};
  Time last_failure_ CAIRN_GUARDED_BY(mutex_){};
};

}  // namespace cairn
