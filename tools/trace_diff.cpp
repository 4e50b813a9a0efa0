// `cairn trace diff A B`: compares two saves or loads: what got slower, and on which rank.
#include <algorithm>
#include <iostream>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kRowsShown = 12;

struct Side {
  explicit Side(const TraceChoice& choice) : opened(choice), diagnosis(diagnose(opened.trace, opened.messages, opened.clocks)) {}
  OpenedTrace opened;
  Diagnosis diagnosis;
};

// One compared duration: of the whole attempt, of a phase, or of a hook on the rank where it took
// longest.
struct Row {
  std::string what;
  std::optional<Duration> before;  // absent if it did not occur
  std::optional<Duration> after;
  int rank_before = -1;  // the rank where it took this long
  int rank_after = -1;
  bool ended_before = true;
  bool ended_after = true;
  Duration change() const { return after.value_or(Duration(0)) - before.value_or(Duration(0)); }
};

struct Longest {
  Duration duration{0};
  int rank = -1;
  bool has_ended = true;  // if not, `duration` lasts until the known end of the call
};

std::map<std::string, Longest> longest_hooks(const Side& side) {
  std::map<std::string, Longest> hooks;
  const WallTime end = side.diagnosis.begin + side.diagnosis.duration;
  for (const auto& [rank, events] : side.opened.trace.events) {
    for (const auto* event : hook_events(events)) {
      const bool has_ended = event->kind == EventKind::kOperation;
      const Longest taken{has_ended ? event->duration : end - side.opened.clocks.begin_of(*event), rank, has_ended};
      auto& hook = hooks[std::string(event->name)];
      if (hook.rank < 0 || taken.duration > hook.duration) hook = taken;
    }
  }
  return hooks;
}

std::vector<Row> phase_rows(const Side& before, const Side& after) {
  std::vector<Row> rows{{"whole call", before.diagnosis.duration, after.diagnosis.duration, -1, -1}};
  for (const char* name : {"join", "local_plan", "global_plan", "write", "read", "finish"}) {
    Row row{std::string("phase ") + name, {}, {}, -1, -1};
    for (const auto& phase : before.diagnosis.phases)
      if (phase.name == name) std::tie(row.before, row.rank_before) = std::make_pair(phase.duration, phase.slowest_rank);
    for (const auto& phase : after.diagnosis.phases)
      if (phase.name == name) std::tie(row.after, row.rank_after) = std::make_pair(phase.duration, phase.slowest_rank);
    if (row.before || row.after) rows.push_back(std::move(row));
  }
  return rows;
}

// Returns the hooks, those that changed most first.
std::vector<Row> hook_rows(const Side& before, const Side& after) {
  std::map<std::string, Row> by_name;
  for (const auto& [name, hook] : longest_hooks(before)) {
    by_name[name].before = hook.duration;
    by_name[name].rank_before = hook.rank;
    by_name[name].ended_before = hook.has_ended;
  }
  for (const auto& [name, hook] : longest_hooks(after)) {
    by_name[name].after = hook.duration;
    by_name[name].rank_after = hook.rank;
    by_name[name].ended_after = hook.has_ended;
  }
  std::vector<Row> rows;
  for (auto& [name, row] : by_name) {
    row.what = name;
    rows.push_back(std::move(row));
  }
  const auto size = [](const Row& row) { return row.change() < Duration(0) ? -row.change() : row.change(); };
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return size(a) > size(b); });
  return rows;
}

std::string cell(const std::optional<Duration>& duration, int rank, bool has_ended) {
  if (!duration) return "-";
  return human_duration(*duration) + (has_ended ? "" : ", no end") + (rank < 0 ? "" : fmt::format(" (rank {})", rank));
}

void print(const Row& row) {
  const Duration change = row.change();
  std::string factor;
  if (row.before && row.after && *row.before > Duration(0))
    factor = fmt::format("  x{:.2f}", static_cast<double>(row.after->count()) / static_cast<double>(row.before->count()));
  std::cout << fmt::format("{:<24}{:>22}{:>22}  {:>12}{}\n", row.what, cell(row.before, row.rank_before, row.ended_before),
                           cell(row.after, row.rank_after, row.ended_after),
                           (change > Duration(0) ? "+" : "") + human_duration(change), factor);
}

Json to_json(const Row& row) {
  Json json{{"what", row.what}, {"change_seconds", in_seconds(row.change())}};
  if (row.before) json["before_seconds"] = in_seconds(*row.before);
  if (row.after) json["after_seconds"] = in_seconds(*row.after);
  if (!row.ended_before) json["before_ended"] = false;
  if (!row.ended_after) json["after_ended"] = false;
  if (row.rank_before >= 0) json["before_rank"] = row.rank_before;
  if (row.rank_after >= 0) json["after_rank"] = row.rank_after;
  return json;
}

}  // namespace

int trace_diff(const TraceChoice& before_choice, const TraceChoice& after_choice) {
  const Side before(before_choice);
  const Side after(after_choice);
  auto rows = phase_rows(before, after);
  const std::size_t phases = rows.size();
  for (auto& row : hook_rows(before, after)) rows.push_back(std::move(row));
  if (before_choice.json) {
    Json list = Json::array();
    for (const auto& row : rows) list.push_back(to_json(row));
    print_json({{"before", to_json(before.opened.trace.attempt)},
                {"after", to_json(after.opened.trace.attempt)},
                {"before_bytes", before.diagnosis.bytes},
                {"after_bytes", after.diagnosis.bytes},
                {"rows", std::move(list)}});
    return kFine;
  }
  const auto head = [](const char* name, const Side& side) {
    std::cout << fmt::format("{:<7}{}, {} ranks, {}, {}\n", name, printable(side.opened.trace.attempt.describe()),
                             side.opened.trace.job.world_size, human_bytes(side.diagnosis.bytes), to_string(side.diagnosis.end));
  };
  head("before", before);
  head("after", after);
  std::cout << fmt::format("{:<24}{:>22}{:>22}  {:>12}\n", "", "before", "after", "change");
  for (std::size_t i = 0; i < std::min(rows.size(), phases + kRowsShown); ++i) {
    if (i == phases) std::cout << "hooks, where each took longest:\n";
    print(rows[i]);
  }
  return kFine;
}

}  // namespace cairn::tools
