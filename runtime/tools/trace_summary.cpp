// `cairn trace DIR`: prints the ten most useful lines.
#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <cairn/base/rank_text.hpp>
#include <cairn/runtime/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kLines = 10;
constexpr std::size_t kFailuresShown = 2;
constexpr std::size_t kTextShown = 240;  // bytes shown of one failure's text

std::string line(const char* name, const std::string& text) { return fmt::format("{:<11}{}", name, text); }

std::string shortened(const std::string& text) {
  const std::string first = text.substr(0, text.find('\n'));
  return printable(first.size() > kTextShown ? first.substr(0, kTextShown) + "…" : first);
}

std::string outcome_line(const OpenedTrace& opened, const Diagnosis& diagnosis) {
  std::string text = opened.trace.attempt.describe() + " ";
  switch (diagnosis.end) {
    case TracedEnd::kSucceeded:
      text += "succeeded in ";
      break;
    case TracedEnd::kFailed:
      text += "FAILED after ";
      break;
    case TracedEnd::kCancelled:
      text += "was cancelled after ";
      break;
    case TracedEnd::kUnfinished:
      text += "DID NOT END; its traces hold ";
      break;
  }
  text += human_duration(diagnosis.duration);
  text += fmt::format(", from {} UTC", time_of_day(diagnosis.begin));
  if (opened.trace.attempt.operation == "save" && diagnosis.end != TracedEnd::kSucceeded) {
    text += diagnosis.committed == "yes"  ? "; the checkpoint exists"
            : diagnosis.committed == "no" ? "; nothing was committed"
                                          : "; nobody knows whether it was committed";
  }
  return printable(text);
}

std::string failure_line(const TracedFailure& failure) {
  std::string text = fmt::format("rank {} {}", failure.rank, failure.kind);
  if (!failure.phase.empty()) text += " in " + failure.phase;
  if (failure.hook && failure.hook->duration)
    text += fmt::format(" ({}, after {})", failure.hook->name, human_duration(*failure.hook->duration));
  if (!failure.code.empty()) text += fmt::format(", {}", failure.code);
  if (!failure.told) text += " (nobody was told; concluded from its trace)";
  return text + ": " + shortened(failure.text);
}

// Returns details of a failure that the traces contain, but the ranks' failure map does not.
std::optional<std::string> where_line(const OpenedTrace& opened, const TracedFailure& failure) {
  if (failure.hook && failure.hook->duration) return std::nullopt;
  std::string text = fmt::format("rank {}: ", failure.rank);
  if (failure.hook)
    text += fmt::format("{} (its {}) began {} after the call and has not ended", failure.hook->name, failure.hook->actor,
                        human_duration(failure.hook->begin - opened.begin));
  else if (failure.last_sign)
    text += "no hook was running";
  else
    return text + "its trace is not here; see when the others heard from it last: cairn trace explain";
  if (failure.last_sign) text += fmt::format("; its last sign is of {} UTC", time_of_day(*failure.last_sign));
  return text;
}

std::string wait_line(const Diagnosis& diagnosis, const TracedWait& wait) {
  const bool for_itself = wait.awaited == std::vector<int>{wait.waiter};
  return fmt::format("rank {}{} waited for {} in {} since {} UTC, for {}{}", wait.waiter,
                     wait.waiter == diagnosis.coordinator ? " (coordinates)" : "",
                     for_itself ? "its own part" : name_ranks(wait.awaited), wait.phase, time_of_day(wait.since),
                     human_duration(wait.duration), wait.was_answered ? "" : ", in vain");
}

std::string phases_line(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& phase : diagnosis.phases) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " | ", phase.name, human_duration(phase.duration));
    if (!phase.has_ended) text += " (no end)";
  }
  return text;
}

std::string ranks_line(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& phase : diagnosis.phases) {
    if (phase.slowest_rank < 0) continue;
    text += fmt::format("{}{}: slowest rank {} ({}), median {}", text.empty() ? "" : " | ", phase.name, phase.slowest_rank,
                        human_duration(phase.slowest), human_duration(phase.median));
  }
  return text;
}

std::string data_line(const Diagnosis& diagnosis) {
  if (diagnosis.bytes == 0) return "none was moved";
  std::string text = human_bytes(diagnosis.bytes);
  if (diagnosis.end != TracedEnd::kSucceeded) return text + " were to be moved";
  if (diagnosis.bytes_per_second >= 1e8)
    text += fmt::format(", {:.2f} GB/s", diagnosis.bytes_per_second / 1e9);
  else if (diagnosis.bytes_per_second > 0)
    text += fmt::format(", {:.2g} MB/s", diagnosis.bytes_per_second / 1e6);
  return text;
}

// Returns a line on how complete the traces are.
std::string traces_line(const OpenedTrace& opened) {
  const auto& job = opened.trace.job;
  std::string text = fmt::format("{} of {} ranks, job {}", job.world_size - static_cast<int>(job.missing.size()), job.world_size,
                                 job.incarnation.substr(0, 8));
  if (!job.missing.empty()) text += "; none of " + name_ranks(job.missing);
  std::uint64_t cut = 0, damaged = 0, unreadable = 0;
  for (const auto& file : opened.directory.files()) {
    cut += file.bytes_cut != 0;
    damaged += !file.damage.empty();
    unreadable += !file.fault.empty();
  }
  if (cut != 0) text += fmt::format("; {} cut off", cut);
  if (damaged != 0) text += fmt::format("; {} damaged", damaged);
  if (unreadable != 0) text += fmt::format("; {} cannot be read", unreadable);
  if (!opened.trace.unread.empty()) text += fmt::format("; {} could not be read again", opened.trace.unread.size());
  if (opened.trace.truncated) text += "; too many events: the later ones are left out";
  if (opened.directory.jobs().size() > 1) text += fmt::format("; {} jobs are mixed here", opened.directory.jobs().size());
  text += fmt::format("; clocks agree within {}", human_duration(opened.clocks.error_max()));
  const auto unaligned = opened.clocks.unaligned();
  if (!unaligned.empty()) text += ", not aligned: " + name_ranks(unaligned);
  return text;
}

Json to_json(const OpenedTrace& opened, const TracedFailure& failure) {
  Json json{{"rank", failure.rank},   {"kind", failure.kind}, {"code", failure.code},
            {"phase", failure.phase}, {"text", failure.text}, {"told", failure.told}};
  if (failure.hook) {
    json["hook"] = failure.hook->name;
    json["hook_began_seconds"] = opened.seconds(failure.hook->begin);
    json["hook_ended"] = failure.hook->duration.has_value();
  }
  if (failure.last_sign) json["last_sign"] = time_of_day(*failure.last_sign);
  return json;
}

Json to_json(const OpenedTrace& opened, const Diagnosis& diagnosis) {
  Json json = tools::to_json(opened.trace.attempt);
  json["end"] = to_string(diagnosis.end);
  json["committed"] = diagnosis.committed;
  json["begin"] = time_of_day(diagnosis.begin);
  json["seconds"] = in_seconds(diagnosis.duration);
  json["coordinator"] = diagnosis.coordinator;
  json["failures"] = Json::array();
  for (const auto& failure : diagnosis.failures) json["failures"].push_back(to_json(opened, failure));
  if (const auto& wait = diagnosis.wait)
    json["wait"] = {{"waiter", wait->waiter},
                    {"awaited", wait->awaited},
                    {"phase", wait->phase},
                    {"since", time_of_day(wait->since)},
                    {"seconds", in_seconds(wait->duration)},
                    {"answered", wait->was_answered}};
  json["phases"] = Json::array();
  for (const auto& phase : diagnosis.phases)
    json["phases"].push_back({{"name", phase.name},
                              {"seconds", in_seconds(phase.duration)},
                              {"ended", phase.has_ended},
                              {"slowest_rank", phase.slowest_rank},
                              {"slowest_seconds", in_seconds(phase.slowest)},
                              {"median_seconds", in_seconds(phase.median)},
                              {"unfinished_ranks", phase.unfinished}});
  json["bytes"] = diagnosis.bytes;
  json["bytes_per_second"] = diagnosis.bytes_per_second;
  json["notices"] = Json::array();
  for (const auto& notice : diagnosis.notices) json["notices"].push_back({{"rank", notice.rank}, {"text", notice.text}});
  json["missing_ranks"] = opened.trace.job.missing;
  json["clock_error_seconds"] = in_seconds(opened.clocks.error_max());
  json["unaligned_ranks"] = opened.clocks.unaligned();
  json["unread"] = opened.trace.unread;
  json["files"] = Json::array();
  for (const auto& file : opened.directory.files())
    json["files"].push_back({{"path", file.path},
                             {"fault", file.fault},
                             {"events", file.events},
                             {"damaged_places", file.damage.size()},
                             {"bytes_cut", file.bytes_cut}});
  return json;
}

}  // namespace

std::vector<std::string> summary_lines(const OpenedTrace& opened, const Diagnosis& diagnosis) {
  std::vector<std::string> lines{outcome_line(opened, diagnosis)};
  const std::size_t failures = diagnosis.failures.size();
  for (std::size_t i = 0; i < std::min(failures, kFailuresShown); ++i)
    lines.push_back(line("failed", failure_line(diagnosis.failures[i])));
  if (failures > kFailuresShown) lines.back() += fmt::format(" … and {} ranks more: --json", failures - kFailuresShown);
  if (failures > 0)
    if (const auto where = where_line(opened, diagnosis.failures.front())) lines.push_back(line("where", *where));
  if (diagnosis.wait) lines.push_back(line("waited", wait_line(diagnosis, *diagnosis.wait)));
  if (!diagnosis.phases.empty()) lines.push_back(line("phases", phases_line(diagnosis)));
  const std::string ranks = ranks_line(diagnosis);
  if (!ranks.empty() && opened.trace.job.world_size > 1) lines.push_back(line("ranks", ranks));
  lines.push_back(line("data", data_line(diagnosis)));
  const std::size_t notices = std::min(diagnosis.notices.size(), kLines - 1 - lines.size());
  for (std::size_t i = 0; i < notices; ++i) lines.push_back(line("notice", shortened(diagnosis.notices[i].text)));
  if (notices < diagnosis.notices.size()) lines.back() += fmt::format(" … and {} more: --json", diagnosis.notices.size() - notices);
  lines.push_back(line("traces", traces_line(opened)));
  return lines;
}

int trace_summary(const TraceChoice& choice) {
  const OpenedTrace opened(choice);
  const Diagnosis diagnosis = diagnose(opened.trace, opened.messages, opened.clocks);
  if (choice.json) {
    print_json(to_json(opened, diagnosis));
    return kFine;
  }
  auto lines = summary_lines(opened, diagnosis);
  if (choice.attempt.empty() && diagnosis.end == TracedEnd::kSucceeded) {
    if (const auto* slow = slowest_beside(opened.directory, opened.trace.attempt)) {
      if (lines.size() == kLines) lines.erase(lines.end() - 2);
      lines.insert(lines.begin() + 1,
                   line("but", printable(fmt::format("{} took {}: --attempt '{}'", slow->describe(),
                                                     human_duration(slow->end() - slow->begin()), slow->save_id))));
    }
  }
  for (const auto& it : lines) std::cout << it << '\n';
  return kFine;
}

}  // namespace cairn::tools
