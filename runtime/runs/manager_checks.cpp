#include <cairn/runtime/runs/manager_checks.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/settings.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/runs/retention.hpp>

namespace cairn {

using std::chrono::milliseconds;

void check_manager_options(const CheckpointManagerOptions& options) {
  const auto require = [](bool fine, const char* what) {
    if (!fine) throw Error(ErrorCode::kInvalidArgument, std::string("CheckpointManagerOptions::") + what);
  };
  require(options.save_every_steps >= 0, "save_every_steps must not be negative; 0 is for never");
  require(options.save_every >= milliseconds(0), "save_every must not be negative; 0 is for never");
  require(options.grace_period >= milliseconds(0), "grace_period must not be negative");
  require(options.ask_every >= milliseconds(0), "ask_every must not be negative");
  require(options.ask_every_steps >= 0, "ask_every_steps must not be negative; 0 means: use ask_every");
  require(options.clock != nullptr, "clock must not be null");
  check_policy(options.retention);
  user_metadata_of(options.user_metadata, {});
}

bool saves_by_itself(const CheckpointManagerOptions& options) {
  return options.save_every_steps > 0 || options.save_every > milliseconds(0) || !options.save_on_signal.empty();
}

std::string why_not_writable(const std::string& url) {
  if (url.empty() || url.front() != '/') return "";
  std::string path = url;
  while (::access(path.c_str(), F_OK) != 0 && errno == ENOENT && path != "/")
    path.resize(std::max<std::size_t>(path.rfind('/'), 1));
  if (::access(path.c_str(), W_OK | X_OK) == 0) return "";
  return std::string(system_error("create files in", path, errno).what());
}

bool is_read_only(const std::string& url) {
  return ::access(url.c_str(), F_OK) == 0 && !why_not_writable(url).empty();
}

void check_run_url(const std::string& url) {
  if (!is_utf8(url))
    throw Error(ErrorCode::kInvalidArgument, "cannot keep checkpoints in " + printable_utf8(url) +
                                                 ": records and messages hold its name, which is not UTF-8; use another");
}

milliseconds grace_of_launcher() {
  const double seconds = parse_number<double>(environment_value("CAIRN_GRACE_SECONDS")).value_or(0);
  return seconds > 0 && seconds < 1e9 ? milliseconds(static_cast<std::int64_t>(seconds * 900)) : milliseconds::max();
}

void check_restore_options(const LoadOptions& options) {
  if (options.world || options.no_dist || !options.use_collectives || options.coordinator_rank != 0 || options.storage_reader)
    throw Error(
        ErrorCode::kInvalidArgument,
        "restore_latest goes by the manager's own world, rank 0 and Cairn's reader: leave world, no_dist, use_collectives, "
        "coordinator_rank and storage_reader of LoadOptions as they are, or choose by latest_valid() and load by a Checkpointer");
}

bool have_codes(const FailureMap& failures, const std::set<ErrorCode>& codes) {
  return !failures.empty() && std::all_of(failures.begin(), failures.end(), [&](const auto& entry) {
    const Failure& failure = entry.second;
    return failure.kind == FailureKind::kRaised && codes.count(failure.code) > 0 && failure.actor != "trainer";
  });
}

void log_passed_over(const ValidCheckpoint& chosen) {
  if (chosen.passed_over.empty()) return;
  std::string passed_over;
  std::int64_t latest = 0;
  for (const PassedOver& one : chosen.passed_over) {
    passed_over += "; " + std::string(passed_over.empty() ? "passed over: " : "") + one.name + ": " + one.why;
    latest = std::max(latest, step_of_name(one.name).value_or(0));
  }
  std::string text = "restored " + chosen.checkpoint.name;
  if (const auto step = chosen.checkpoint.step; step && latest > *step)
    text += ", " + std::to_string(latest - *step) + " steps earlier than the latest checkpoint";
  text += passed_over;
  write_log(LogLevel::kWarning, 0, text);
}

std::string text_of_faults(const std::vector<VerifyFault>& faults) {
  const VerifyFault& first = faults.front();
  return first.object + " at offset " + std::to_string(first.offset) + ": " + first.what +
         (faults.size() > 1 ? "; " + std::to_string(faults.size() - 1) + " more" : "");
}

}  // namespace cairn
