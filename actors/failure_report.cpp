#include <cairn/actors/failure_report.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <future>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <cairn/base/descriptor.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/version.hpp>
#include <cairn/tracing/trace_writer.hpp>

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{2};
constexpr const char* kPrefix = "failure-";
constexpr const char* kCall = "-call-";  // replaces the counter in the name if the call has no save id
constexpr const char* kTextName = "report.txt";

struct Report {
  std::shared_ptr<ReportedCall> call;
  CallResult outcome;  // a copy, since `done` may be called before the report is written
  TraceHeader header;
};

std::string report_name(const Report& report) {
  if (!report.outcome.save_id.empty()) return kPrefix + report.outcome.save_id;
  char key[16];
  std::snprintf(key, sizeof key, "-%08x", static_cast<unsigned>(checkpointer_key(report.call->id.checkpointer)));
  return kPrefix + report.header.incarnation + key + kCall + std::to_string(report.call->id.ordinal);
}

std::string time_text(WallTime time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::seconds>(time));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string report_text(const Report& report, const std::string& directory) {
  const auto& outcome = report.outcome;
  std::string text = "cairn: the " + report.call->operation + " of '" + report.call->checkpoint_id + "' has failed\n\n";
  text += describe(outcome.failures) + "\n\n";
  text += std::string("committed   ") + to_string(outcome.committed) + "\n";
  text += "save id     " + (outcome.save_id.empty() ? "none yet" : outcome.save_id) + "\n";
  text += "job         " + report.header.incarnation + ", " + std::to_string(report.header.world_size) + " ranks\n";
  text += "written     " + time_text(report.header.wall) + " by rank " + std::to_string(report.header.rank) + " on " +
          report.header.host + ", Cairn " + kVersion + "\n\n";
  if (leaves_traces(outcome.failures))
    text += "The traces beside this file show what the ranks did before: cairn trace " + directory + "\n";
  return text;
}

// Creates the file and returns true, or returns false if another rank was first.
bool write_text(const std::string& path, const std::string& text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid() && errno == EEXIST) return false;
  if (!file.valid()) throw system_error("create the report", path, errno);
  if (::write(file.get(), text.data(), text.size()) < 0) throw system_error("write the report", path, errno);
  return true;
}

// Returns whether `report_name` could have made this name.
bool is_report_name(std::string_view name) {
  const std::string_view prefix = kPrefix;
  if (name.substr(0, prefix.size()) != prefix) return false;
  std::string rest(name.substr(prefix.size()));
  if (const std::size_t call = rest.find(kCall); call != std::string::npos)
    rest = "cairn-" + rest.substr(0, call) + "-" + rest.substr(call + std::string_view(kCall).size());
  return is_save_id(rest);
}

// Also matches the unfinished trace of a rank that was interrupted.
bool is_trace_name(const std::string& name) {
  return name.rfind("rank-", 0) == 0 &&
         (fs::path(name).extension() == ".trace" || name.find(".trace.unfinished-") != std::string::npos);
}

// Returns whether Cairn made the directory and it contains no foreign files.
bool is_report(const fs::directory_entry& entry) {
  if (!is_report_name(entry.path().filename().string()) || entry.symlink_status().type() != fs::file_type::directory) return false;
  for (const auto& file : fs::directory_iterator(entry.path())) {
    const std::string name = file.path().filename().string();
    if (file.symlink_status().type() != fs::file_type::regular || (name != kTextName && !is_trace_name(name))) return false;
  }
  return true;
}

// Returns the reports in `directory` except `latest`, oldest first.
std::vector<fs::path> earlier_reports(const fs::path& directory, const fs::path& latest) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::error_code failed;  // another job may have removed the report, or it may be unreadable
    try {
      if (entry.path() == latest || !is_report(entry)) continue;
    } catch (const fs::filesystem_error&) {
      continue;
    }
    if (const auto time = entry.last_write_time(failed); !failed) found.emplace_back(time, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  paths.reserve(found.size());
  for (auto& [time, path] : found) paths.push_back(std::move(path));
  return paths;
}

// Removes the files one by one, so that foreign files added meanwhile are kept.
void remove_report(const fs::path& report) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(report)) files.push_back(file.path());
  for (const fs::path& file : files)
    if (file.filename() == kTextName || is_trace_name(file.filename().string())) fs::remove(file);
  fs::remove(report);
}

// Removes the oldest reports, so that at most kFailureReportsMax remain, including `latest`.
// Returns why it cannot; "" if it can.
std::string make_room_for(const fs::path& latest) {
  std::vector<fs::path> earlier;
  try {
    earlier = earlier_reports(latest.parent_path(), latest);
  } catch (const fs::filesystem_error& error) {
    return std::string("the earlier reports cannot be listed: ") + error.what();
  }
  try {
    for (std::size_t i = 0; i + kFailureReportsMax <= earlier.size(); ++i) remove_report(earlier[i]);
  } catch (const fs::filesystem_error& error) {
    return "there are " + std::to_string(kFailureReportsMax) + ", and the oldest cannot be removed: " + error.what();
  }
  return "";
}

void write(const Report& report) {
  const MutexLock lock(report.call->writing);
  const fs::path directory = fs::path(report.call->directory) / report_name(report);
  if (fs::create_directory(directory)) {  // only one rank creates the directory, so only one removes old reports
    if (const std::string why = make_room_for(directory); !why.empty()) {
      std::error_code in_use;
      fs::remove(directory, in_use);
      write_log(LogLevel::kWarning, report.header.rank,
                "no report of the failed " + report.call->operation + " of '" + report.call->checkpoint_id + "' is left: " + why);
      return;
    }
  }
  if (fs::symlink_status(directory).type() != fs::file_type::directory)
    throw Error(ErrorCode::kPermission, directory.string() + " is a link, or a file that Cairn did not make");
  const bool has_traces = leaves_traces(report.outcome.failures);
  if (has_traces) {
    const TraceSnapshot taken = report.call->tracer->snapshot();
    write_trace_file((directory / trace_file_name(report.header)).string(), report.header, taken.events);
  }
  const std::string text_path = (directory / kTextName).string();
  if (write_text(text_path, report_text(report, directory.string())))
    write_log(LogLevel::kWarning, report.header.rank,
              "the " + report.call->operation + " of '" + report.call->checkpoint_id + "' has failed; for details " +
                  (has_traces ? "run: cairn trace " + directory.string() : "see " + text_path));
}

// Writes on another thread and waits at most `kPatience` for it.
void write_in_time(const std::shared_ptr<const Report>& report) {
  const auto warn = [&](const std::string& why) {
    write_log(LogLevel::kInfo, report->header.rank,
              "the report of the failed " + report->call->operation + " cannot be written in " + report->call->directory +
                  ": " + why);
  };
  try {
    std::packaged_task<void()> task([report] { write(*report); });
    auto written = task.get_future();
    start_thread("cairn-report", std::move(task)).detach();
    if (written.wait_for(kPatience) != std::future_status::ready) return warn("the file system does not answer");
    written.get();
  } catch (const std::exception& error) {
    warn(error.what());
  } catch (...) {
    warn("an object that is not a std::exception was thrown");
  }
}

// Returns whether the map calls this rank silent, among the first. A rank that has received such a
// map is alive, and knows most about the failure.
bool is_first_silent(const FailureMap& failures, int rank) {
  std::size_t before = 0;
  for (const auto& [whose, failure] : failures) {
    if (failure.kind != FailureKind::kSilent) continue;
    if (whose == rank) return before < kReportingRanksMax;
    ++before;
  }
  return false;
}

bool is_reported(const ReportedCall& call, const FailureMap& failures) {
  // A deadline that has passed is nobody's wish.
  const bool was_only_cancelled = std::all_of(failures.begin(), failures.end(), [](const auto& entry) {
    return entry.second.kind == FailureKind::kCancelled && entry.second.code != ErrorCode::kDeadline;
  });
  if (call.directory.empty() || was_only_cancelled) return false;
  return reporting_ranks(failures, call.world_size).count(call.rank) != 0 || is_first_silent(failures, call.rank);
}

std::shared_ptr<const Report> make_report(const std::shared_ptr<ReportedCall>& call, CallResult outcome) {
  auto report = std::make_shared<Report>();
  report->call = call;
  report->outcome = std::move(outcome);
  report->header = trace_header(call->incarnation, call->rank, call->world_size, TraceSource::kRing);
  return report;
}

// Releases `done` as it calls it: a report that hangs keeps the call.
void deliver(ReportedCall& call) {
  const auto done = std::move(call.done);
  done(std::move(call.outcome));
}

// Runs the last steps of a call on a thread of their own, where nobody can handle an exception.
template <class Act>
void try_to(const Act& act) noexcept {
  try {
    act();
  } catch (...) {
  }
}

}  // namespace

std::set<int> reporting_ranks(const FailureMap& failures, int world_size) {
  std::set<int> reporting;
  const auto add = [&](int rank) {
    if (reporting.size() < kReportingRanksMax) reporting.insert(rank);
  };
  const auto is_gone = [](const Failure& failure) {
    return failure.kind == FailureKind::kLost || failure.kind == FailureKind::kSilent;
  };
  for (const auto& [rank, failure] : failures)
    if (!is_gone(failure)) add(rank);
  for (int rank = 0; rank < world_size && reporting.size() < kReportingRanksMax; ++rank) {
    const auto failed = failures.find(rank);
    if (failed == failures.end() || !is_gone(failed->second)) add(rank);
  }
  return reporting;
}

bool leaves_traces(const FailureMap& failures) {
  return std::none_of(failures.begin(), failures.end(), [](const auto& entry) { return entry.second.code == ErrorCode::kNoSpace; });
}

void report_running_call(const std::shared_ptr<ReportedCall>& call, CallResult outcome) noexcept {
  try_to([&] {
    if (!is_reported(*call, outcome.failures)) return;
    auto report = make_report(call, std::move(outcome));
    start_thread("cairn-report", [report] { try_to([&] { write_in_time(report); }); }).detach();
  });
}

void end_call(std::shared_ptr<ReportedCall> call, CallResult outcome) {
  call->outcome = std::move(outcome);
  try {
    if (is_reported(*call, call->outcome.failures)) {
      auto report = make_report(call, call->outcome);
      start_thread("cairn-report", [report, call] {
        try_to([&] { write_in_time(report); });
        try_to([&] { deliver(*call); });
      }).detach();
      return;
    }
  } catch (const std::bad_alloc&) {  // there is no memory for a line in the log either
  } catch (const std::exception&) {
    write_log(LogLevel::kInfo, call->rank, "cannot write the report of a failed call: no thread can be started");
  }
  deliver(*call);
}

}  // namespace cairn
