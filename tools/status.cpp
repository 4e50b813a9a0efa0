// `cairn status`: what a job does now, from its traces, its run and its metrics.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/base/clock.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/tools/run_contents.hpp>
#include <cairn/tools/terminal.hpp>
#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr const char* kStatusExamples = R"(Examples:
  cairn status traces               what runs now, what it waits for, the last save, failures, ranks that died
  cairn status run metrics traces   the same, and what the run and the metrics tell
  watch cairn status traces         again and again

DIR is a directory with traces (CAIRN_TRACE, cairn-launch --trace), a run, or a directory with files of
metrics (CAIRN_METRICS_DIR). Traces tell most. Of ranks on other hosts, they do not tell whether these
run now.)";

// A clock that was set back gives no negative ages.
std::string ago(WallTime time) { return human_duration(std::max(Duration(0), system_clock().wall_now() - time)) + " ago"; }
WallTime time_of(double seconds) { return WallTime(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds))); }

// The status of one place: lines for people, and the same as JSON.
struct Status {
  std::vector<std::string> lines;
  Json json;

  void add(const char* name, const std::string& text) { lines.push_back(named_line(name, printable(text))); }
};

// Returns "step 3, ", or "" if the step is not known.
std::string step_text(const std::optional<std::int64_t>& step) { return step ? fmt::format("step {}, ", *step) : ""; }

// An agreement, which ranks make within a save of a CheckpointManager, is shown if it fails or
// takes longer: the save waits for it.
constexpr Duration kLongAgreement = std::chrono::seconds(1);

// Adds what the traces tell about the job that began last.
void add_traces(const std::string& path, Status& status) {
  const auto directory = open_traces(path);
  if (directory->jobs().empty()) throw Error(ErrorCode::kNotFound, "the traces in " + path + " cannot be read");
  const TracedJob& job = directory->jobs().back();
  const TracedAttempt *last_save = nullptr, *last_failed = nullptr;
  std::size_t saves = 0, failed = 0;
  status.json["running"] = Json::array();
  for (const TracedAttempt& attempt : directory->attempts()) {
    if (attempt.job != job.incarnation) continue;
    const bool is_agreement = attempt.operation == Operation::kAgree;
    if (attempt.is_running) {
      const OpenedTrace opened(directory, attempt);
      const WallTime begin = opened.diagnosis.begin;
      if (is_agreement && system_clock().wall_now() - begin < kLongAgreement) continue;
      status.add("now", fmt::format("{}, since {} UTC, {}", attempt.describe(), time_of_day(begin), ago(begin)));
      for (std::string& text : running_lines(opened)) status.lines.push_back(std::move(text));
      Json running = to_json(attempt);
      running["seconds"] = in_seconds(system_clock().wall_now() - begin);
      running["phases"] = to_json(opened.diagnosis.phases);
      running["hooks"] = hooks_json(opened);
      status.json["running"].push_back(std::move(running));
      continue;
    }
    if (attempt.operation == Operation::kSave) {
      const bool succeeded = attempt.has_ended() && !attempt.has_failed();
      saves += attempt.went_wrong() || succeeded;
      failed += attempt.went_wrong();
      if (succeeded) last_save = &attempt;
    }
    if (attempt.went_wrong()) last_failed = &attempt;
  }
  // Unknown for ranks on other hosts, which are not counted.
  const auto lives = std::count_if(job.writers.begin(), job.writers.end(),
                                   [](const auto& writer) { return writer.second.is_running.value_or(false); });
  if (status.json["running"].empty()) status.add("now", "no save or load is running");
  if (last_save != nullptr) {
    const auto step = step_of_name(last_save->checkpoint_id.substr(last_save->checkpoint_id.rfind('/') + 1));
    status.add("last save", fmt::format("{}{}, took {}: {}", step_text(step), ago(last_save->end()),
                                        human_duration(last_save->duration()), last_save->checkpoint_id));
    status.json["last_save"] = to_json(*last_save);
    if (step) status.json["last_save"]["step"] = *step;
    status.json["last_save"]["age_seconds"] = in_seconds(system_clock().wall_now() - last_save->end());
    status.json["last_save"]["seconds"] = in_seconds(last_save->duration());
  }
  status.add("saves", fmt::format("{} succeeded, {} failed", saves - failed, failed));
  status.json["saves"] = saves - failed;
  status.json["failed"] = failed;
  if (last_failed != nullptr) {
    const OpenedTrace opened(directory, *last_failed);
    const auto& failures = opened.diagnosis.failures;
    const std::string why = failures.empty() ? "" : failure_line(opened.trace.job, failures.front());
    status.add("failed", fmt::format("{}, {}{}", last_failed->describe(), ago(last_failed->end()), why.empty() ? "" : ": " + why));
    status.json["last_failure"] = to_json(*last_failed);
    status.json["last_failure"]["why"] = why;
  }
  status.json["died"] = Json::array();
  for (const auto& [rank, process] : job.processes) {
    // The others run, or have ended as planned.
    if (!process.has_failed()) continue;
    const std::string last_call = last_call_of(*directory, job, rank);
    status.add("died",
               fmt::format("{}: its process {}, {}; {}", job.describe(rank), process.describe(), ago(process.ended), last_call));
    status.json["died"].push_back(
        {{"rank", rank}, {"how", process.describe()}, {"at", time_of_day(process.ended)}, {"last_call", last_call}});
    if (const auto writer = job.writers.find(rank); writer != job.writers.end()) {
      status.json["died"].back()["host"] = writer->second.host;
      status.json["died"].back()["process"] = writer->second.process;
    }
  }
  status.add("ranks",
             fmt::format("{} of {} are known to run on this host; job {}", lives, job.world_size, job.incarnation.substr(0, 8)));
  status.json["ranks"] = {{"world_size", job.world_size}, {"running_here", lives}, {"job", job.incarnation}};
}

// Adds what the run tells: its latest sound checkpoint, saves that are open, reports of failures.
void add_run(const std::string& path, Status& status) {
  const RunContents contents = look_at_run(path);
  const auto last = std::find_if(contents.checkpoints.begin(), contents.checkpoints.end(),
                                 [](const ListedCheckpoint& one) { return one.may_resume && one.fault.empty(); });
  if (last == contents.checkpoints.end()) {
    status.add("last save", contents.checkpoints.empty() ? "there is no checkpoint" : "the run has no sound checkpoint");
  } else {
    status.add("last save",
               fmt::format("{}{}{}: {}", step_text(last->head.step), last->saved_at ? ago(time_of(*last->saved_at)) + ", " : "",
                           human_bytes(last->bytes), last->name));
    status.json["last_save"] = {{"checkpoint_id", last->name}};
    if (last->head.step) status.json["last_save"]["step"] = *last->head.step;
    if (last->saved_at) status.json["last_save"]["age_seconds"] = in_seconds(system_clock().wall_now() - time_of(*last->saved_at));
  }
  std::size_t open = 0;
  for (const Leftover& leftover : contents.leftovers) open += leftover.is_open;
  if (open > 0) status.add("now", counted(open, "save") + " open: running, or of a job that was killed");
  status.json["open_saves"] = open;
  status.json["failure_reports"] = contents.failure_reports;
  if (!contents.failure_reports.empty())
    status.add("failed", fmt::format("{}: `cairn trace {}` shows the last one",
                                     counted(contents.failure_reports.size(), "failure report"), path));
}

// Adds what files of metrics tell, by run: the largest value of all ranks for a name and outcome.
void add_metrics(const std::vector<std::filesystem::path>& files, Status& status) {
  std::map<std::string, std::map<std::string, double>> runs;
  const auto label_in = [](const std::string& text, const std::string& name) {
    const std::size_t at = text.find(name + "=\"");
    const std::size_t begin = at + name.size() + 2;
    return at == std::string::npos ? "" : text.substr(begin, text.find('"', begin) - begin);
  };
  for (const auto& path : files) {
    std::ifstream file(path);
    for (std::string text; std::getline(file, text);) {
      if (text.rfind("cairn_", 0) != 0) continue;
      const double value = std::strtod(text.c_str() + text.rfind(' '), nullptr);
      auto& run = runs[label_in(text, "run")];
      const std::string name = text.substr(0, text.find('{')) + label_in(text, "outcome");
      run[name] = std::max(run[name], value);
      if (name == "cairn_running") ++run["ranks"], run["alive"] += value;
    }
  }
  // A rank that was killed cannot write that it has ended, so it counts as running.
  const double now = in_seconds(system_clock().wall_now().time_since_epoch());
  for (auto& [name, run] : runs) {
    const double last = run["cairn_save_last_success_timestamp_seconds"], begin = run["cairn_save_start_timestamp_seconds"];
    status.add("run", name.empty() ? "without a name" : name);
    status.add("now", begin > 0 ? "a save is in progress, since " + human_seconds(now - begin) : "no save is in progress");
    if (last > 0) status.add("last save", human_seconds(now - last) + " ago");
    status.add("saves", fmt::format("{} succeeded, {} failed", run["cairn_saves_totalsuccess"], run["cairn_saves_totalfailed"]));
    status.add("ranks", fmt::format("{} of {} run or were killed, and the others ended as planned", run["alive"], run["ranks"]));
    status.json["metrics"].push_back({{"run", name},
                                      {"saving_seconds", begin > 0 ? Json(now - begin) : Json()},
                                      {"age_seconds", last > 0 ? Json(now - last) : Json()},
                                      {"saves", run["cairn_saves_totalsuccess"]},
                                      {"failed", run["cairn_saves_totalfailed"]},
                                      {"ranks", run["ranks"]},
                                      {"ranks_not_ended", run["alive"]}});
  }
}

// Takes a directory for one of traces or metrics by the names of its files, and for a run
// otherwise.
Status status_of(const std::string& place) {
  std::vector<std::filesystem::path> metrics;
  bool has_traces = false;
  std::error_code error;
  if (const auto path = local_path(place))
    for (const auto& entry : std::filesystem::directory_iterator(*path, error)) {
      if (entry.path().extension() == ".prom") metrics.push_back(entry.path());
      has_traces = has_traces || entry.path().extension() == ".trace";
    }
  Status status;
  status.json["place"] = place;
  if (has_traces) add_traces(place, status);
  if (!metrics.empty()) add_metrics(metrics, status);
  if (!has_traces && metrics.empty()) add_run(place, status);
  return status;
}

struct StatusOptions {
  std::vector<std::string> places;
  bool json = false;
};

int show_status(const StatusOptions& options) {
  Json list = Json::array();
  for (const std::string& place : options.places) {
    const Status status = status_of(place);
    list.push_back(status.json);
    if (options.json) continue;
    if (options.places.size() > 1) std::cout << coloured(Colour::kBold, printable(place) + ":") << '\n';
    for (const std::string& text : status.lines) print_line(text, kNameColumns);
  }
  if (options.json) print_json(list);
  return kFine;
}

}  // namespace

void add_status(CLI::App& app, Run& chosen) {
  const char* const what = "Show what a job does now: running saves, the last one, failures, dead ranks";
  const auto [command, options] = add_command(app, chosen, "status", what, kStatusExamples, show_status);
  command->add_option("DIR", options.places, "Directories with traces or metrics, or runs")->required();
  command->add_flag("--json", options.json, "Print JSON: a list with an entry for each DIR");
}

}  // namespace cairn::tools
