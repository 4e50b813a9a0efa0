// `cairn trace DIR`: prints the ten most useful lines.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cairn/base/rank_text.hpp>
#include <cairn/tools/terminal.hpp>
#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kLines = 10;
constexpr std::size_t kFailuresShown = 2;
constexpr std::size_t kRunningShown = 2;
constexpr std::size_t kTextShown = 400;  // bytes shown of one failure's text: errors may name two objects

// Returns a line with what went wrong in colour.
std::string with_colours(std::string text) {
  for (const std::string word : {"FAILED", "DID NOT END"})
    if (const auto at = text.find(' ' + word + ' '); at != std::string::npos)
      text.replace(at + 1, word.size(), coloured(Colour::kBad, word));
  for (const std::string name : {"failed", "died"})
    if (text.rfind(name + ' ', 0) == 0) text.replace(0, name.size(), coloured(Colour::kBad, name));
  return text;
}

constexpr std::size_t kPathShown = 40;  // longer paths are cut to their last two parts

// Shortens the paths in a text: they are long, and what matters stands at their end or after them.
std::string with_short_paths(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" '\",;\n", at), text.size());
    std::string word = text.substr(at, end - at);
    const std::size_t path = word.find('/');
    const std::size_t last = word.rfind('/');
    if (path != std::string::npos && word.size() - path > kPathShown && last > path + 1) {
      const std::size_t before_last = word.rfind('/', last - 1);
      if (before_last != std::string::npos && before_last > path) word.replace(path, before_last - path, "…");
    }
    result += word;
    if (end < text.size()) result += text[end];
    at = end + 1;
  }
  return result;
}

std::string shortened(const std::string& text) {
  const std::string first = with_short_paths(text.substr(0, text.find('\n')));
  return printable(first.size() > kTextShown ? first.substr(0, kTextShown) + "…" : first);
}

std::string outcome_line(const OpenedTrace& opened) {
  const Diagnosis& diagnosis = opened.diagnosis;
  // By end, in the order of TracedEnd, which counts from 1.
  static constexpr const char* kSaid[] = {"succeeded in ", "FAILED after ", "was cancelled after ",
                                          "DID NOT END; its traces hold "};
  static_assert(std::size(kSaid) == static_cast<std::size_t>(TracedEnd::kRunning) - 1, "all but kRunning, the last, have a text");
  std::string text = opened.trace.attempt.describe() + " ";
  const std::string begin = time_of_day(diagnosis.begin) + " UTC";
  if (diagnosis.end == TracedEnd::kRunning) return printable(text + "is running, since " + begin);
  text += kSaid[static_cast<std::size_t>(diagnosis.end) - 1] + human_duration(diagnosis.duration) + ", from " + begin;
  if (opened.trace.attempt.operation == Operation::kSave && diagnosis.end != TracedEnd::kSucceeded) {
    text += diagnosis.committed == Committed::kYes  ? "; the checkpoint exists"
            : diagnosis.committed == Committed::kNo ? "; nothing was committed"
                                                    : "; nobody knows whether it was committed";
  }
  return printable(text);
}

// Returns details of a failure that the traces contain, but the ranks' failure map does not.
std::optional<std::string> where_line(const OpenedTrace& opened, const TracedFailure& failure) {
  if (failure.store)
    return printable(fmt::format("rank {}: {} failed after {}: {}", failure.rank, subject_text(*failure.store),
                                 human_duration(failure.store->duration), failure.store->object));
  if (failure.hook && failure.hook->duration) return std::nullopt;
  // A rank that gave up has said itself for what it waited.
  if (failure.kind == FailureKind::kCancelled) return std::nullopt;
  std::vector<std::string> parts;
  if (!failure.fate_text.empty()) parts.push_back(failure.fate_text);
  if (failure.hook)
    parts.push_back(fmt::format("{} (its {}) began {} after the call and had not ended", failure.hook->name,
                                to_string(failure.hook->actor), human_duration(failure.hook->begin - opened.diagnosis.begin)));
  else if (failure.last_sign && failure.fate != RankFate::kActorEnded)  // that text says what it did
    parts.push_back("no hook was running");
  if (!failure.last_sign) {
    const auto& missing = opened.trace.job.missing;
    const bool has_trace = std::find(missing.begin(), missing.end(), failure.rank) == missing.end();
    const std::string recorded = has_trace ? "it recorded nothing in this call" : "its trace is not here";
    parts.push_back(failure.last_action.empty() ? recorded : recorded + ", and " + failure.last_action);
  } else if (!failure.last_action.empty() && !failure.hook && failure.fate != RankFate::kActorEnded)
    parts.push_back("it last " + failure.last_action);
  const bool went_on = failure.fate == RankFate::kCutOff || failure.fate == RankFate::kFrozen;
  if (failure.last_sign)
    parts.push_back(fmt::format("its last event{} was at {} UTC", went_on ? " before that" : "", time_of_day(*failure.last_sign)));
  return printable(fmt::format("rank {}: {}", failure.rank, fmt::join(parts, "; ")));
}

// Returns a line about the first process that ended by itself before this call began, or after it
// succeeded. A failed call makes trainers end, so later ends say nothing then.
std::optional<std::string> death_line(const OpenedTrace& opened) {
  const Diagnosis& diagnosis = opened.diagnosis;
  const std::pair<const int, TracedProcess>* first = nullptr;
  for (const auto& entry : opened.trace.job.processes) {
    const auto call = opened.trace.attempt.calls.find(entry.first);
    const bool is_in_call = call != opened.trace.attempt.calls.end() && !call->second.has_ended;
    const bool counts = diagnosis.end == TracedEnd::kSucceeded || entry.second.ended < diagnosis.begin;
    if (entry.second.has_failed() && counts && !is_in_call && (first == nullptr || entry.second.ended < first->second.ended))
      first = &entry;
  }
  if (first == nullptr) return std::nullopt;
  const WallTime ended = first->second.ended;
  const WallTime end = diagnosis.begin + diagnosis.duration;
  return fmt::format("{}: its process {} at {} UTC, {}", printable(opened.trace.job.describe(first->first)),
                     printable(first->second.describe()), time_of_day(ended),
                     ended < diagnosis.begin ? human_duration(diagnosis.begin - ended) + " before this call began; " +
                                                   printable(last_call_of(*opened.directory, opened.trace.job, first->first))
                     : ended > end ? human_duration(ended - end) + " after this call ended"
                                   : "after its part of this call");
}

std::string for_long(const Diagnosis& diagnosis, Duration duration) {
  std::string text = "for " + human_duration(duration);
  if (diagnosis.duration > Duration(0))
    text += fmt::format(" ({:.0f} % of the call)", 100 * in_seconds(duration) / in_seconds(diagnosis.duration));
  return text;
}

std::string longest_line(const Diagnosis& diagnosis, const PathStep& step) {
  if (const auto& connection = diagnosis.slow_connection)
    return fmt::format("{} messages between rank {} and rank {} on their way, together {}: the connection was slow",
                       connection->messages, connection->rank, connection->other, for_long(diagnosis, connection->duration));
  std::string text = fmt::format("rank {} {}, {}", step.rank, printable(step.what), for_long(diagnosis, step.duration));
  // A store operation belongs to the step if most of it lies within.
  const auto& store = diagnosis.slow_store;
  if (store && store->rank == step.rank && 2 * store->duration > step.duration) text += "; " + printable(describe(*store));
  return text;
}

std::string wait_line(const Diagnosis& diagnosis, const TracedWait& wait) {
  const bool for_itself = wait.awaited == std::vector<int>{wait.waiter};
  return fmt::format(
      "rank {}{} {} {} since {} UTC, for {}{}", wait.waiter, wait.waiter == diagnosis.coordinator ? " (coordinates)" : "",
      for_itself ? "was busy with its own part of" : "waited for " + name_ranks(wait.awaited) + " in", text_of(wait.phase),
      time_of_day(wait.since), human_duration(wait.duration), wait.was_answered ? "" : ", in vain");
}

// Returns what a running call waits for now; nothing if it waits for no rank.
std::optional<std::string> running_line(const Diagnosis& diagnosis) {
  if (diagnosis.end != TracedEnd::kRunning || diagnosis.phases.empty()) return std::nullopt;
  const TracedPhase& phase = diagnosis.phases.back();
  if (phase.has_ended || phase.unfinished.empty()) return std::nullopt;
  return fmt::format("for {}, in {} since {} UTC", name_ranks(phase.unfinished), to_string(phase.phase), time_of_day(phase.begin));
}

std::string phases_line(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& phase : diagnosis.phases) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " | ", to_string(phase.phase), human_duration(phase.duration));
    if (!phase.has_ended) text += " (no end)";
  }
  return text;
}

std::string ranks_line(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& phase : diagnosis.phases) {
    if (phase.slowest_rank < 0) continue;
    text += fmt::format("{}{}: slowest rank {} ({}), median {}", text.empty() ? "" : " | ", to_string(phase.phase),
                        phase.slowest_rank, human_duration(phase.slowest), human_duration(phase.median));
  }
  return text;
}

std::string data_line(const Diagnosis& diagnosis) {
  if (diagnosis.bytes == 0) return "none was moved";
  std::string text = human_bytes(diagnosis.bytes);
  if (diagnosis.end == TracedEnd::kRunning) return text + " are to be moved";
  if (diagnosis.end != TracedEnd::kSucceeded) return text + " were to be moved";
  const auto rate = static_cast<std::uint64_t>(diagnosis.bytes_per_second);
  return rate > 0 ? text + ", " + human_bytes(rate) + "/s" : text;
}

// Returns a line on how complete the traces are.
std::string traces_line(const OpenedTrace& opened) {
  const auto& job = opened.trace.job;
  std::string text = fmt::format("{} of {} ranks, job {}", job.world_size - static_cast<int>(job.missing.size()), job.world_size,
                                 job.incarnation.substr(0, 8));
  if (!job.missing.empty()) text += "; none of " + name_ranks(job.missing);
  std::uint64_t cut = 0, damaged = 0, unreadable = 0;
  for (const auto& file : opened.directory->files()) {
    cut += file.bytes_cut != 0;
    damaged += !file.damage.empty();
    unreadable += !file.fault.empty();
  }
  if (cut != 0) text += fmt::format("; {} cut off", cut);
  if (damaged != 0) text += fmt::format("; {} damaged", damaged);
  if (unreadable != 0) text += fmt::format("; {} cannot be read", unreadable);
  if (!opened.trace.unread.empty()) text += fmt::format("; {} could not be read again", opened.trace.unread.size());
  if (opened.trace.truncated) text += "; too many events: the later ones are left out";
  if (opened.directory->jobs().size() > 1) text += fmt::format("; {} jobs are mixed here", opened.directory->jobs().size());
  text += fmt::format("; clocks agree within {}", human_duration(opened.clocks.error_max()));
  const auto unaligned = opened.clocks.unaligned();
  if (!unaligned.empty()) text += ", not aligned: " + name_ranks(unaligned);
  return text;
}

Json failure_json(const OpenedTrace& opened, const TracedFailure& failure) {
  Json json{{"rank", failure.rank},          {"kind", kind_text(failure)},
            {"code", text_of(failure.code)}, {"phase", text_of(failure.phase)},
            {"text", failure.text},          {"told", failure.told}};
  if (const auto writer = opened.trace.job.writers.find(failure.rank); writer != opened.trace.job.writers.end()) {
    json["host"] = writer->second.host;
    json["process"] = writer->second.process;
  }
  if (failure.hook) {
    json["hook"] = failure.hook->name;
    json["hook_began_seconds"] = opened.seconds(failure.hook->begin);
    json["hook_ended"] = failure.hook->duration.has_value();
  }
  if (failure.last_sign) json["last_sign"] = time_of_day(*failure.last_sign);
  if (!failure.last_action.empty()) json["last_action"] = failure.last_action;
  if (!failure.fate_text.empty()) {
    json["fate"] = to_string(failure.fate);
    json["fate_text"] = failure.fate_text;
  }
  return json;
}

Json diagnosis_json(const OpenedTrace& opened) {
  const Diagnosis& diagnosis = opened.diagnosis;
  Json json = tools::to_json(opened.trace.attempt);
  json["end"] = to_string(diagnosis.end);
  json["committed"] = text_of(diagnosis.committed);
  json["begin"] = time_of_day(diagnosis.begin);
  json["seconds"] = in_seconds(diagnosis.duration);
  json["coordinator"] = diagnosis.coordinator;
  json["failures"] = Json::array();
  for (const auto& failure : diagnosis.failures) json["failures"].push_back(failure_json(opened, failure));
  if (!diagnosis.in_hook.empty()) json["running"] = hooks_json(opened);
  if (const auto& wait = diagnosis.wait)
    json["wait"] = {{"waiter", wait->waiter},
                    {"awaited", wait->awaited},
                    {"phase", text_of(wait->phase)},
                    {"since", time_of_day(wait->since)},
                    {"seconds", in_seconds(wait->duration)},
                    {"answered", wait->was_answered}};
  if (const auto& step = diagnosis.longest_step)
    json["longest_step"] = {{"rank", step->rank}, {"what", step->what}, {"seconds", in_seconds(step->duration)}};
  if (const auto& connection = diagnosis.slow_connection)
    json["slow_connection"] = {{"ranks", {connection->rank, connection->other}},
                               {"messages", connection->messages},
                               {"seconds", in_seconds(connection->duration)}};
  if (const auto& store = diagnosis.slow_store)
    json["slow_store"] = {{"rank", store->rank},
                          {"operation", store->name},
                          {"object", store->object},
                          {"bytes", store->bytes},
                          {"seconds", in_seconds(store->duration)}};
  json["processes"] = Json::array();
  for (const auto& [rank, process] : opened.trace.job.processes) {
    Json entry{{"rank", rank}, {"ended", time_of_day(process.ended)}, {"told", process.told}};
    if (process.signal.empty())
      entry["code"] = process.code;
    else
      entry["signal"] = process.signal;
    json["processes"].push_back(std::move(entry));
  }
  json["phases"] = tools::to_json(diagnosis.phases);
  json["bytes"] = diagnosis.bytes;
  json["bytes_per_second"] = diagnosis.bytes_per_second;
  json["notices"] = Json::array();
  for (const auto& notice : diagnosis.notices) json["notices"].push_back({{"rank", notice.rank}, {"text", notice.text}});
  json["missing_ranks"] = opened.trace.job.missing;
  json["clock_error_seconds"] = in_seconds(opened.clocks.error_max());
  json["unaligned_ranks"] = opened.clocks.unaligned();
  json["unread"] = opened.trace.unread;
  json["files"] = Json::array();
  for (const auto& file : opened.directory->files())
    json["files"].push_back({{"path", file.path},
                             {"fault", file.fault},
                             {"events", file.events},
                             {"damaged_places", file.damage.size()},
                             {"bytes_cut", file.bytes_cut}});
  return json;
}

}  // namespace

std::string named_line(const char* name, const std::string& text) { return fmt::format("{:<{}}{}", name, kNameColumns, text); }

std::string failure_line(const TracedJob& job, const TracedFailure& failure) {
  std::string who = job.describe(failure.rank);
  // The text of a lost connection names the process, too.
  const auto process = who.find(" (");
  if (process != std::string::npos && failure.text.find(who.substr(process)) != std::string::npos) who.resize(process);
  std::string text = fmt::format("{} {}", printable(who), kind_text(failure));
  if (failure.phase) text += std::string(" in ") + to_string(*failure.phase);
  if (failure.hook && failure.hook->duration)
    text += fmt::format(" ({}, after {})", failure.hook->name, human_duration(*failure.hook->duration));
  // As in the ranks' exceptions.
  if (failure.code && *failure.code != ErrorCode::kUnavailable) text += fmt::format(" [{}]", to_string(*failure.code));
  if (!failure.told) text += " (nobody was told; concluded from its trace)";
  return text + ": " + shortened(failure.text);
}

Json to_json(const std::vector<TracedPhase>& phases) {
  Json list = Json::array();
  for (const auto& phase : phases)
    list.push_back({{"name", to_string(phase.phase)},
                    {"seconds", in_seconds(phase.duration)},
                    {"ended", phase.has_ended},
                    {"slowest_rank", phase.slowest_rank},
                    {"slowest_seconds", in_seconds(phase.slowest)},
                    {"median_seconds", in_seconds(phase.median)},
                    {"unfinished_ranks", phase.unfinished}});
  return list;
}

Json hooks_json(const OpenedTrace& opened) {
  Json hooks = Json::array();
  for (const auto& [rank, hook] : opened.diagnosis.in_hook)
    hooks.push_back({{"rank", rank}, {"hook", hook.name}, {"began_seconds", opened.seconds(hook.begin)}});
  return hooks;
}

std::string last_call_of(const TraceDirectory& directory, const TracedJob& job, int rank) {
  std::string text = "it had called nothing";
  for (const TracedAttempt& attempt : directory.attempts()) {
    const auto call = attempt.calls.find(rank);
    if (attempt.job != job.incarnation || attempt.operation == Operation::kAgree || call == attempt.calls.end()) continue;
    text = "its last call was the " + attempt.describe() + (call->second.has_ended ? "" : ", which had not ended");
  }
  return text;
}

std::vector<std::string> running_lines(const OpenedTrace& opened) {
  const Diagnosis& diagnosis = opened.diagnosis;
  std::vector<std::string> lines;
  if (const auto waits = running_line(diagnosis)) lines.push_back(named_line("waits", *waits));
  std::size_t running = 0;
  for (const auto& [rank, hook] : diagnosis.in_hook) {
    if (++running > kRunningShown) break;
    lines.push_back(named_line(
        "runs", printable(opened.trace.job.describe(rank)) +
                    fmt::format(" is in {} (its {}), since {} UTC", hook.name, to_string(hook.actor), time_of_day(hook.begin))));
  }
  if (running > kRunningShown)
    lines.back() += fmt::format(" … and {} more ranks: --json", diagnosis.in_hook.size() - kRunningShown);
  return lines;
}

std::vector<std::string> summary_lines(const OpenedTrace& opened) {
  const Diagnosis& diagnosis = opened.diagnosis;
  std::vector<std::string> lines;
  if (const auto death = death_line(opened)) lines.push_back(named_line("died", *death));
  lines.push_back(outcome_line(opened));
  const std::size_t failures = diagnosis.failures.size();
  for (std::size_t i = 0; i < std::min(failures, kFailuresShown); ++i)
    lines.push_back(named_line("failed", failure_line(opened.trace.job, diagnosis.failures[i])));
  if (failures > kFailuresShown) lines.back() += fmt::format(" … and {} more ranks: --json", failures - kFailuresShown);
  if (failures > 0)
    if (const auto where = where_line(opened, diagnosis.failures.front())) lines.push_back(named_line("where", *where));
  for (const std::string& running : running_lines(opened)) lines.push_back(running);
  // Beside a failure, an ordinary wait is noise.
  if (diagnosis.wait && diagnosis.end != TracedEnd::kRunning && (failures == 0 || !diagnosis.wait->was_answered))
    lines.push_back(named_line("waited", wait_line(diagnosis, *diagnosis.wait)));
  if (failures == 0 && diagnosis.longest_step)
    lines.push_back(named_line("longest", longest_line(diagnosis, *diagnosis.longest_step)));
  if (!diagnosis.phases.empty()) lines.push_back(named_line("phases", phases_line(diagnosis)));
  const std::string ranks = ranks_line(diagnosis);
  if (!ranks.empty() && opened.trace.job.world_size > 1) lines.push_back(named_line("ranks", ranks));
  lines.push_back(named_line("data", data_line(diagnosis)));
  const std::size_t notices = std::min(diagnosis.notices.size(), kLines - std::min(kLines, lines.size() + 1));
  for (std::size_t i = 0; i < notices; ++i) lines.push_back(named_line("notice", shortened(diagnosis.notices[i].text)));
  if (const std::size_t more = diagnosis.notices.size() - notices; more > 0)
    lines.back() += fmt::format(" … and {} more: --json", more);
  lines.push_back(named_line("traces", traces_line(opened)));
  return lines;
}

int trace_summary(const TraceOptions& options) {
  const OpenedTrace opened = open_chosen(options);
  if (options.json) {
    print_json(diagnosis_json(opened));
    return kFine;
  }
  auto lines = summary_lines(opened);
  if (options.attempt.empty() && opened.diagnosis.end == TracedEnd::kSucceeded) {
    if (const auto* slow = slowest_beside(*opened.directory, opened.trace.attempt)) {
      if (lines.size() == kLines) lines.erase(lines.end() - 2);
      lines.insert(lines.begin() + 1, named_line("but", printable(fmt::format("{} took {}: --attempt '{}'", slow->describe(),
                                                                              human_duration(slow->duration()), slow->save_id))));
    }
  }
  for (const auto& it : lines) print_line(with_colours(it), kNameColumns);
  return kFine;
}

}  // namespace cairn::tools
