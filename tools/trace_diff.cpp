// `cairn trace diff A B`: compares two saves or loads: what got slower, and on which rank.
#include <algorithm>
#include <iostream>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <cairn/tools/terminal.hpp>
#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kRowsShown = 12;

struct Side {
  explicit Side(const TraceChoice& choice) : opened(choice), diagnosis(diagnose(opened.trace, opened.messages, opened.clocks)) {}
  OpenedTrace opened;
  Diagnosis diagnosis;
};

// A duration in one of the two: of the whole call, of a phase, or of a hook on the rank where it
// took longest.
struct Taken {
  Duration duration{0};
  int rank = -1;          // the rank where it took this long
  bool has_ended = true;  // if not, `duration` lasts until the known end of the call
};

struct Row {
  std::string what;
  std::optional<Taken> before;  // absent if it did not occur
  std::optional<Taken> after;
  Duration change() const { return (after ? after->duration : Duration(0)) - (before ? before->duration : Duration(0)); }
};

using Hooks = std::map<std::string, Taken>;

Hooks longest_hooks(const Side& side) {
  Hooks hooks;
  const WallTime end = side.diagnosis.begin + side.diagnosis.duration;
  for (const auto& [rank, events] : side.opened.trace.events) {
    for (const auto* event : hook_events(events)) {
      const bool has_ended = event->kind == EventKind::kOperation;
      const Taken taken{has_ended ? event->duration : end - side.opened.clocks.begin_of(*event), rank, has_ended};
      auto& hook = hooks[std::string(event->name)];
      if (hook.rank < 0 || taken.duration > hook.duration) hook = taken;
    }
  }
  return hooks;
}

std::optional<Taken> phase_of(const Side& side, Phase wanted) {
  for (const auto& phase : side.diagnosis.phases)
    if (phase.phase == wanted) return Taken{phase.duration, phase.slowest_rank, true};
  return std::nullopt;
}

std::vector<Row> phase_rows(const Side& before, const Side& after) {
  std::vector<Row> rows{{"whole call", Taken{before.diagnosis.duration}, Taken{after.diagnosis.duration}}};
  for (const Phase phase : {Phase::kJoin, Phase::kLocalPlan, Phase::kGlobalPlan, Phase::kWrite, Phase::kRead, Phase::kFinish}) {
    Row row{std::string("phase ") + to_string(phase), phase_of(before, phase), phase_of(after, phase)};
    if (row.before || row.after) rows.push_back(std::move(row));
  }
  return rows;
}

// Returns the hooks, those that changed most first.
std::vector<Row> hook_rows(const Side& before, const Side& after) {
  std::map<std::string, Row> by_name;
  for (const auto& [name, hook] : longest_hooks(before)) by_name[name] = {name, hook, std::nullopt};
  for (const auto& [name, hook] : longest_hooks(after)) {
    by_name[name].what = name;
    by_name[name].after = hook;
  }
  std::vector<Row> rows;
  for (auto& [name, row] : by_name) rows.push_back(std::move(row));
  const auto size = [](const Row& row) { return std::max(row.change(), -row.change()); };
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return size(a) > size(b); });
  return rows;
}

std::string cell(const std::optional<Taken>& taken) {
  if (!taken) return "-";
  return human_duration(taken->duration) + (taken->has_ended ? "" : ", no end") +
         (taken->rank < 0 ? "" : fmt::format(" (rank {})", taken->rank));
}

void print(const Row& row) {
  const Duration change = row.change();
  std::string factor;
  if (row.before && row.after && row.before->duration > Duration(0))
    factor = fmt::format("  x{:.2f}", in_seconds(row.after->duration) / in_seconds(row.before->duration));
  print_line(fmt::format("{:<24}{:>22}{:>22}  {:>12}{}", row.what, cell(row.before), cell(row.after),
                         (change > Duration(0) ? "+" : "") + human_duration(change), factor),
             kTraceIndent);
}

Json row_json(const Row& row) {
  Json json{{"what", row.what}, {"change_seconds", in_seconds(row.change())}};
  for (const auto& [side, taken] : {std::pair("before", row.before), std::pair("after", row.after)}) {
    if (!taken) continue;
    json[side + std::string("_seconds")] = in_seconds(taken->duration);
    if (!taken->has_ended) json[side + std::string("_ended")] = false;
    if (taken->rank >= 0) json[side + std::string("_rank")] = taken->rank;
  }
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
    for (const auto& row : rows) list.push_back(row_json(row));
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
