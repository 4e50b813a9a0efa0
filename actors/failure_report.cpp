#include <cairn/actors/failure_report.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>

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

struct Report {
  FailedCall call;
  TraceHeader header;
  std::shared_ptr<const Tracer> tracer;
};

std::string name_of(const Report& report) {
  if (!report.call.outcome.save_id.empty()) return kPrefix + report.call.outcome.save_id;
  char rest[40];
  std::snprintf(rest, sizeof rest, "-%08x-call-%llu", static_cast<unsigned>(checkpointer_key(report.call.id.checkpointer)),
                static_cast<unsigned long long>(report.call.id.ordinal));
  return kPrefix + report.header.incarnation + rest;
}

std::string time_text(WallTime time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::seconds>(time));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string text_of(const Report& report, const std::string& directory) {
  const auto& outcome = report.call.outcome;
  std::string text = "cairn: the " + report.call.operation + " of '" + report.call.checkpoint_id + "' has failed\n\n";
  text += describe(outcome.failures) + "\n\n";
  text += std::string("committed   ") + to_string(outcome.committed) + "\n";
  text += "save id     " + (outcome.save_id.empty() ? "none yet" : outcome.save_id) + "\n";
  text += "job         " + report.header.incarnation + ", " + std::to_string(report.header.world_size) + " ranks\n";
  text += "written     " + time_text(report.header.wall) + " by rank " + std::to_string(report.header.rank) + " on " +
          report.header.host + ", Cairn " + kVersion + "\n\n";
  text += "What the ranks did before it is in the files beside this one: cairn trace " + directory + "\n";
  return text;
}

// Whether this rank was the first.
bool write_text(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) return false;
  if (file < 0) throw system_error("create the report", path, errno);
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = errno;
  ::close(file);
  if (written < 0) throw system_error("write the report", path, error);
  return true;
}

bool has_room(const fs::path& directory) {
  std::size_t reports = 0;
  for (const auto& entry : fs::directory_iterator(directory)) reports += entry.path().filename().string().rfind(kPrefix, 0) == 0;
  return reports < kFailureReportsMax;
}

void write(const Report& report) {
  const fs::path directory = fs::path(report.call.directory) / name_of(report);
  if (!fs::exists(directory)) {
    if (!has_room(report.call.directory)) {
      write_log(LogLevel::kInfo, report.header.rank,
                "no report of the failed " + report.call.operation + " is written: " + report.call.directory + " holds " +
                    std::to_string(kFailureReportsMax) + " already; remove those that nobody needs");
      return;
    }
    fs::create_directory(directory);
  }
  const TraceSnapshot taken = report.tracer->snapshot();
  write_trace_file((directory / trace_file_name(report.header)).string(), report.header, taken.events);
  if (write_text((directory / "report.txt").string(), text_of(report, directory.string())))
    write_log(LogLevel::kWarning, report.header.rank,
              "the " + report.call.operation + " of '" + report.call.checkpoint_id + "' has failed; cairn trace " +
                  directory.string() + " says more");
}

}  // namespace

void write_failure_report(FailedCall call, const std::string& incarnation, int rank, int world_size,
                          std::shared_ptr<const Tracer> tracer) noexcept {
  const std::string operation = call.operation;
  const std::string place = call.directory;
  const auto warn = [&](const std::string& why) {
    write_log(LogLevel::kInfo, rank, "the report of the failed " + operation + " cannot be written in " + place + ": " + why);
  };
  try {
    auto report = std::make_shared<Report>();
    report->call = std::move(call);
    report->header = trace_header(incarnation, rank, world_size, TraceSource::kRing);
    report->tracer = std::move(tracer);
    std::packaged_task<void()> task([report] { write(*report); });
    auto written = task.get_future();
    {
      const SignalsBlocked blocked;
      std::thread(std::move(task)).detach();
    }
    if (written.wait_for(kPatience) != std::future_status::ready) return warn("the file system does not answer");
    written.get();
  } catch (const std::exception& error) {
    warn(error.what());
  } catch (...) {
    warn("something that is no exception was thrown");
  }
}

}  // namespace cairn
