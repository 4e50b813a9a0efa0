// Checks of a checkpoint manager, and its texts on a restore. Internal.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/failure.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/runs/manager_options.hpp>
#include <cairn/storage/verify_checkpoint.hpp>

namespace cairn {

// Throw kInvalidArgument.
void check_manager_options(const CheckpointManagerOptions& options);
void check_restore_options(const LoadOptions& options);
void check_run_url(const std::string& url);

// Returns whether the options say when to save. A manager without such options may be there only to
// read.
bool saves_by_itself(const CheckpointManagerOptions& options);
// Returns why this process cannot create files in the directory `url`, or in its nearest existing
// parent; "" if it can, or if the store is not a directory.
std::string why_not_writable(const std::string& url);
// Returns whether `url` is a directory, or file, in which this process cannot create files.
bool is_read_only(const std::string& url);
// Returns nine tenths of the time that cairn-launch leaves between a signal and SIGKILL: the rest
// is for shutting down. Without cairn-launch, returns the maximum.
std::chrono::milliseconds grace_of_launcher();
// Returns whether all failures have one of the codes. Considers only failures that all ranks know:
// an exception of a Stateful object is known only on its own rank.
bool have_codes(const FailureMap& failures, const std::set<ErrorCode>& codes);

// Warns about lost steps: a caller may not look at the result of `restore_latest`.
void log_passed_over(const ValidCheckpoint& chosen);
std::string text_of_faults(const std::vector<VerifyFault>& faults);

}  // namespace cairn
