#include <cairn/tracing/trace_places.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

namespace fs = std::filesystem;

bool begins_with(std::string_view text, std::string_view beginning) { return text.substr(0, beginning.size()) == beginning; }

std::vector<std::string> traces_in(const fs::path& directory) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end; entry.increment(failed))
    if (entry->path().extension() == ".trace") paths.push_back(entry->path().string());
  if (failed) throw system_error("list the traces in", directory.string(), failed.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Returns the latest report with traces. If not `with_traces`, a report.txt suffices: on a full
// disk a report has no traces.
std::optional<fs::path> latest_report(const fs::path& directory, bool with_traces = true) {
  std::optional<fs::path> latest;
  fs::file_time_type latest_time;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::error_code failed;
    if (!begins_with(entry.path().filename().string(), "failure-") || !entry.is_directory(failed)) continue;
    const auto time = entry.last_write_time(failed);
    // Before looking into the directory, which is slower.
    if (failed || (latest && time <= latest_time)) continue;
    if (with_traces ? traces_in(entry.path()).empty() : !fs::exists(entry.path() / "report.txt", failed)) continue;
    latest = entry.path();
    latest_time = time;
  }
  return latest;
}

// Reports carry no common number if one of them lacks the save id. Ranks write them within seconds
// of the end of the call.
constexpr std::chrono::seconds kReportsApart{60};  // of one failed call, at most

// Returns the job and checkpointer in the name of a report; "" if it has another form.
std::string key_of_report(const std::string& name) {
  constexpr std::size_t kKeyBytes = 32 + 1 + 8;  // incarnation and checkpointer, in hexadecimal
  // The length of "failure-cairn-", or of "failure-".
  const std::size_t begin = begins_with(name, "failure-cairn-") ? 14 : 8;
  return name.size() > begin + kKeyBytes ? name.substr(begin, kKeyBytes) : "";
}

bool is_without_save_id(const fs::path& report) { return report.filename().string().find("-call-") != std::string::npos; }

// Returns the traces in a report, and those of other ranks in a report that one of them wrote about
// the same call without knowing its save id.
std::vector<std::string> traces_of_report(const fs::path& report) {
  auto traces = traces_in(report);
  std::set<std::string> known;  // "rank-00003"
  const auto rank_of = [](const std::string& path) { return fs::path(path).filename().string().substr(0, 10); };
  for (const auto& trace : traces) known.insert(rank_of(trace));
  const std::string key = key_of_report(report.filename().string());
  std::error_code failed;
  const auto time = fs::last_write_time(report, failed);
  for (fs::directory_iterator entry(report.parent_path(), failed), end; !failed && entry != end; entry.increment(failed)) {
    const fs::path& other = entry->path();
    std::error_code gone;
    if (!begins_with(other.filename().string(), "failure-") || key.empty() || key_of_report(other.filename().string()) != key ||
        is_without_save_id(other) == is_without_save_id(report) || !entry->is_directory(gone))
      continue;
    const auto apart = fs::last_write_time(other, gone) - time;
    if (gone || apart > kReportsApart || apart < -kReportsApart) continue;
    try {
      for (const auto& trace : traces_in(other))
        if (known.insert(rank_of(trace)).second) traces.push_back(trace);
    } catch (const Error&) {  // may not be read
    }
  }
  return traces;
}

// Returns a place with traces: one directory inside `path`, or the directory `traces` beside it.
std::optional<std::string> traces_nearby(const fs::path& path) {
  std::error_code failed;
  // For the hint in an error. Checkpoints and traces often lie side by side.
  std::vector<fs::path> places{fs::weakly_canonical(path, failed).parent_path() / "traces"};
  for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed))
    places.push_back(entry->path());
  for (const fs::path& place : places) {
    try {
      if (fs::is_directory(place, failed) && (!traces_in(place).empty() || latest_report(place))) return place.string();
    } catch (const std::exception&) {  // no permission to read it
    }
  }
  return std::nullopt;
}

}  // namespace

FoundTraces find_traces(const std::string& path) {
  if (!fs::exists(path)) throw Error(ErrorCode::kNotFound, "there is no " + path + " to read traces from");
  if (!fs::is_directory(path)) return {path, {path}};
  auto files = traces_in(path);
  if (!files.empty()) return {path, std::move(files)};
  if (const auto report = latest_report(path)) return {report->string(), traces_of_report(*report)};
  const auto nearby = traces_nearby(path);
  const auto report = latest_report(path, /*with_traces=*/false);
  throw Error(
      ErrorCode::kNotFound,
      path + " holds no traces (rank-*.trace)" +
          (report ? "; what failed is in " + (*report / "report.txt").string() : " and no reports of failed saves (failure-*)") +
          (nearby ? "; there are traces in " + *nearby : "; ranks write traces where CAIRN_TRACE names a directory"));
}

}  // namespace cairn
