// Checkpoints in two tiers: a fast near store and a durable far one, under one URL.
//
//   cairn::TierOptions options;
//   options.near_url = "/mnt/nvme/run-17";
//   options.far_url = "s3://bucket/run-17";
//   cairn::register_tier("fast", options);
//   cairn::CheckpointManager manager(world, "tiered://fast/run");
//
// A save returns when the near tier has the checkpoint. A thread of each process copies what that
// process has written to the far tier. The checkpoint exists there once its record does, and is
// whole from then on. A load reads from the near tier, and from the far tier what the near tier has
// lost or damaged. If the near tier is lost, so are the checkpoints that were not copied.
// docs/stores.md, "Tiers", has the limits.
//
// All functions are thread-safe. They throw the errors of the stores.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// A pair of tiers. `tiered://NAME/path` is `near_url`/path in the near tier and `far_url`/path in
// the far one.
struct TierOptions {
  std::string near_url;  // such as a directory on a local disk, or below /dev/shm
  std::string far_url;   // such as a directory of a parallel file system, or s3://bucket/prefix
  // The near tier keeps the data of this many copied checkpoints of a run, the last committed. It
  // keeps the records of all, and the data of older ones stays in the far tier alone. At least 1.
  std::size_t keep_near = 2;
  unsigned copy_threads = 2;                     // threads of a process that copy one file
  std::uint64_t piece_bytes = 16u << 20;         // memory of each of them
  std::chrono::milliseconds retry_min = std::chrono::milliseconds(100);  // first pause after a failure; then it doubles
  std::chrono::milliseconds retry_max = std::chrono::seconds(30);  // longest pause
  // If a file that another process has begun to copy has not grown for this long, as after the
  // death of that process, this process takes it over. The time doubles each time it does so.
  std::chrono::milliseconds takeover_after = std::chrono::seconds(30);
  // `wait_for_copies` without a deadline gives up after this long without progress: no file was
  // copied whole, none was copied further than by earlier tries, and no checkpoint was published.
  std::chrono::milliseconds drain_patience = std::chrono::minutes(10);
};

// Defines the pair NAME for this process. Throws kAlreadyExists if it is defined, kInvalidArgument
// for a bad name or option. The environment variable CAIRN_TIERS defines pairs with default
// options: "NAME=near URL|far URL;NAME=...". Programs like `cairn` need it.
void register_tier(const std::string& name, const TierOptions& options);

// Returns whether `url` has the scheme `tiered`.
bool is_tiered(const std::string& url);

// A checkpoint that was saved to the near tier, and lost there before it was copied.
struct LostCheckpoint {
  std::string url;
  std::string save_id;
};

// Continues the copies that an earlier process left undone in the run at `run_url`, in the
// background. Returns the checkpoints that were lost with the near tier, and logs a warning for
// each. The near tier may have been lost before this process started or afterwards. The function
// cannot tell lost checkpoints from those that a process with another near tier is still copying.
// If the far tier has a later save of a checkpoint, removes the older one from the near tier.
// Removes nothing from the far tier: the first save of this process to the run removes there what
// lost checkpoints left. A CheckpointManager calls this. So does the first save of a process to the
// run, in the background. Commands that only read never do. Does nothing if `run_url` is not
// tiered.
std::vector<LostCheckpoint> resume_copies(const std::string& run_url);

// Tells that this process saves to the run at `run_url`, before its first save asks what is there.
// After `resume_copies`, such questions need the far tier only if the near tier lacks the record of
// a checkpoint there. A CheckpointManager calls this before it saves. Without this call, the first
// save of a process needs the far tier. Does nothing if `run_url` is not tiered.
void expect_saves(const std::string& run_url);

// Waits until everything that this process copies to `url` and below is in the far tier. Returns
// whether everything is there. If the near tier was lost before a checkpoint was copied, returns
// false until this process saves to the run again. Without a deadline, gives up as
// TierOptions::drain_patience says, and logs which checkpoints are in the near tier only, and which
// are lost. Returns true at once if `url` is not tiered.
bool wait_for_copies(const std::string& url, std::optional<std::chrono::milliseconds> deadline = std::nullopt);
// Waits as without a deadline, but returns false as soon as `goes_on` does. Calls it several times
// a second.
bool wait_for_copies(const std::string& url, const std::function<bool()>& goes_on);

// Returns whether the far tier has save `save_id` of the checkpoint at `url`, whichever process
// copied it. Returns true if `url` is not tiered. Throws kUnavailable while the far tier fails for
// this process.
bool is_copied(const std::string& url, const std::string& save_id);

// The copies of this process.
struct TierProgress {
  std::size_t objects_waiting = 0;
  std::uint64_t bytes_waiting = 0;
  std::size_t objects_copied = 0;
  std::uint64_t bytes_copied = 0;  // includes those of objects that are being copied
  // URLs of checkpoints that this process has published in the near tier, and that are only there.
  std::vector<std::string> checkpoints_waiting;
  // Checkpoints that the near tier lost before they were copied. Listed until this process saves to
  // their run.
  std::vector<LostCheckpoint> checkpoints_lost;
  std::string last_error;  // the last error since the process started; "": none
  // The time when copying began to fail; absent once everything that failed has been copied.
  std::optional<std::chrono::system_clock::time_point> failing_since;
};
// Throws kInvalidArgument if the pair is not defined.
TierProgress tier_progress(const std::string& name);

}  // namespace cairn
