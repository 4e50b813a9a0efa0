#include <cairn/tools/trace.hpp>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <map>
#include <set>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cairn/base/settings.hpp>
#include <cairn/tools/terminal.hpp>

namespace cairn::tools {
namespace {

// Parses `TraceOptions::after` into seconds since 1970.
double moment_of(const std::string& text) {
  if (text.empty()) return 0;
  std::tm parts{};
  if (const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts); end != nullptr && *end == 0)
    return static_cast<double>(::timegm(&parts));
  if (const auto seconds = parse_number<double>(text)) return *seconds;
  throw WrongUse("\"" + printable(text) + "\" is no time: give it as in 2030-12-31T23:59:59 (UTC), or in seconds since 1970");
}

// Returns whether it is a call that Cairn made to agree on something, such as whether to save now.
bool is_internal(const TracedAttempt& attempt) { return attempt.operation == Operation::kAgree; }

bool fits(const TracedAttempt& attempt, const TraceOptions& choice) {
  if (attempt.job.rfind(choice.job, 0) != 0) return false;
  if (in_seconds(attempt.begin().time_since_epoch()) < moment_of(choice.after)) return false;
  if (choice.attempt.empty()) return true;
  if (choice.attempt == "last") return !is_internal(attempt);
  const std::string counter = std::to_string(attempt.counter);
  if (choice.attempt.find_first_not_of("0123456789") == std::string::npos)
    return counter == choice.attempt && !is_internal(attempt);
  if (attempt.operation_name() + ":" + counter == choice.attempt) return true;
  return attempt.save_id == choice.attempt || attempt.checkpoint_id.find(choice.attempt) != std::string::npos;
}

const TracedAttempt& choose(const TraceDirectory& directory, const TraceOptions& choice) {
  if (directory.attempts().empty()) {
    std::string faults;
    for (const auto& file : directory.files())
      if (!file.fault.empty()) faults += "\n  " + printable(file.fault);
    throw Error(ErrorCode::kNotFound, fmt::format("no save or load is in the traces of {}{}", directory.path(), faults));
  }
  const TracedAttempt* found = nullptr;
  if (choice.attempt.empty()) {
    found = directory.most_interesting(
        [&](const auto& attempt) { return fits(attempt, choice) && (!is_internal(attempt) || attempt.went_wrong()); });
    const auto fits_it = [&](const auto& attempt) { return fits(attempt, choice); };
    if (found == nullptr && directory.most_interesting(fits_it) != nullptr)
      throw Error(ErrorCode::kNotFound,
                  fmt::format("no save or load has begun yet, as far as the traces in {} tell: they hold only agreements of the "
                              "ranks, which `cairn trace list --all` shows",
                              directory.path()));
  } else {
    const bool is_number = choice.attempt.find_first_not_of("0123456789", choice.attempt.find(':') + 1) == std::string::npos;
    std::string others;
    for (const auto& attempt : directory.attempts()) {
      if (!fits(attempt, choice)) continue;
      if (found != nullptr && !found->save_id.empty()) others += "\n  " + found->save_id;
      found = &attempt;
    }
    if (is_number && !others.empty())
      throw WrongUse(
          fmt::format("several calls match \"{}\": name one by its save id:{}\n  {}", choice.attempt, others, found->save_id));
  }
  if (found == nullptr && !choice.after.empty() && choice.attempt.empty())
    throw Error(ErrorCode::kNotFound,
                fmt::format("no save or load has begun since then, as far as the traces in {} tell", directory.path()));
  if (found == nullptr)
    throw WrongUse(fmt::format("no save or load in {} is called \"{}\"{}: `cairn trace list` shows those that are there",
                               directory.path(), choice.attempt, choice.job.empty() ? "" : " in job " + choice.job));
  return *found;
}

const char* end_of(const TracedAttempt& attempt) {
  if (attempt.has_failed()) return attempt.was_cancelled ? "cancelled" : "failed";
  return attempt.has_ended() ? "succeeded" : attempt.is_running ? "running" : "unfinished";
}

constexpr std::uint64_t kExportedEventsMax = 1'000'000;

constexpr std::size_t kSlowAmong = 3;
constexpr double kSlowFactor = 4;  // times the median
constexpr Duration kSlowMin = std::chrono::milliseconds(100);

// Returns the attempts that took several times as long as others of their kind.
std::set<const TracedAttempt*> slow_attempts(const TraceDirectory& directory) {
  std::map<std::optional<Operation>, std::vector<Duration>> durations;
  for (const auto& attempt : directory.attempts())
    if (attempt.has_ended()) durations[attempt.operation].push_back(attempt.duration());
  for (auto& [operation, of_kind] : durations) std::sort(of_kind.begin(), of_kind.end());
  std::set<const TracedAttempt*> slow;
  for (const auto& attempt : directory.attempts()) {
    const auto& of_kind = durations[attempt.operation];
    if (of_kind.size() < kSlowAmong) continue;
    const Duration own = attempt.duration(), median = of_kind[(of_kind.size() - 1) / 2];
    if (own > median + kSlowMin && in_seconds(own) > kSlowFactor * in_seconds(median)) slow.insert(&attempt);
  }
  return slow;
}

}  // namespace

const TracedAttempt* slowest_beside(const TraceDirectory& directory, const TracedAttempt& shown) {
  const TracedAttempt* found = nullptr;
  for (const auto* attempt : slow_attempts(directory)) {
    const bool is_shown =
        attempt->save_id == shown.save_id && attempt->operation == shown.operation && attempt->counter == shown.counter;
    if (!is_shown && (found == nullptr || attempt->duration() > found->duration())) found = attempt;
  }
  return found;
}

std::shared_ptr<const TraceDirectory> open_traces(const std::string& path) {
  try {
    return std::make_shared<const TraceDirectory>(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    throw WrongUse(error.what());
  }
}

OpenedTrace::OpenedTrace(std::shared_ptr<const TraceDirectory> in, const TracedAttempt& attempt)
    : directory(std::move(in)),
      trace(directory->read(attempt)),
      messages(match_messages(trace)),
      clocks(trace, messages),
      diagnosis(diagnose(trace, messages, clocks)) {}

double OpenedTrace::seconds(WallTime time) const { return in_seconds(time - diagnosis.begin); }

OpenedTrace open_chosen(const TraceOptions& choice) {
  const auto directory = open_traces(choice.directory);
  return {directory, choose(*directory, choice)};
}

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string describe_state(const ObservedEvent& event) {
  if (const auto* timer = event.as<Timer>()) return fmt::format("met the deadline for {}", to_string(*timer));
  if (const auto* turn = event.as<CallTurn>()) return to_string(*turn);
  if (const auto* restarted = event.as<Restarted>()) return fmt::format("restarted the {}", to_string(restarted->actor));
  return fmt::format("{}{}", event.as<Ignored>() != nullptr ? "ignored: " : "is ", name_of(event));
}

std::string describe_event(const ObservedEvent& event) {
  if (const auto* state = event.as<RankState>()) return fmt::format("rank is {}", to_string(*state));
  if (const auto* state = event.as<CoordinatorState>()) return fmt::format("coordinator is {}", to_string(*state));
  if (const auto* state = event.as<SuccessionState>()) return fmt::format("succession is {}", to_string(*state));
  const std::string name = name_of(event);
  const char* const actor = to_string(event.actor);
  if (event.kind == EventKind::kState) return fmt::format("{} {}", actor, describe_state(event));
  std::string text = fmt::format("{} {} {}", event.kind == EventKind::kCall ? "trainer" : actor, verb_of(event.kind), name);
  if (event.kind == EventKind::kFailure)
    text += event.peer < 0 ? " (this rank)" : fmt::format(" (rank {})", event.peer);
  else if (event.peer >= 0)
    text += fmt::format(" {} rank {}", event.kind == EventKind::kSent ? "to" : "from", event.peer);
  if (event.kind == EventKind::kOutcome) text += event.ok ? ": success" : ": failure";
  if (const auto* committed = event.as<Committed>()) text += fmt::format(", committed {}", to_string(*committed));
  if (event.kind == EventKind::kFrame) text += fmt::format("+0x{:x}", event.number);
  const bool took_time = event.kind == EventKind::kOperation || event.kind == EventKind::kStore || event.kind == EventKind::kStack;
  if (took_time) text += fmt::format(" after {}", human_duration(event.duration));
  if (took_time && !event.ok && event.kind != EventKind::kStack) text += ", FAILED";
  if (!event.text.empty()) text += ": " + printable(std::string(event.text));
  return text;
}

Json to_json(const OpenedTrace& opened, const ObservedEvent& event) {
  const WallTime time = opened.clocks.at(event);
  Json json{{"rank", event.rank},
            {"id", event.id},
            {"seconds", opened.seconds(time)},
            {"time", time_of_day(time)},
            {"actor", to_string(event.actor)},
            {"kind", verb_of(event.kind)},
            {"name", name_of(event)}};
  if (event.peer >= 0) json["peer"] = event.peer;
  if (event.cause != 0) json["cause"] = event.cause;
  if (event.attempt != 0) json["attempt"] = event.attempt;
  if (event.phase) json["phase"] = to_string(*event.phase);
  if (event.code) json["code"] = to_string(*event.code);
  if (const auto* committed = event.as<Committed>()) json["committed"] = to_string(*committed);
  if (event.bytes != 0) json["bytes"] = event.bytes;
  if (event.duration.count() != 0) json["duration_seconds"] = in_seconds(event.duration);
  if (event.queued.count() != 0) json["queued_seconds"] = in_seconds(event.queued);
  if (!event.ok) json["ok"] = false;
  if (!event.text.empty()) json["text"] = event.text;
  return json;
}

Json to_json(const TracedAttempt& attempt) {
  return {{"operation", attempt.operation_name()},
          {"checkpoint_id", attempt.checkpoint_id},
          {"attempt", attempt.counter},
          {"save_id", attempt.save_id},
          {"job", attempt.job},
          {"ranks", attempt.calls.size()}};
}

Json to_json(const ListedAttempt& listed) {
  const TracedAttempt& attempt = *listed.attempt;
  Json json = to_json(attempt);
  json["begin"] = time_of_day(attempt.begin());
  json["seconds"] = in_seconds(attempt.duration());
  json["end"] = end_of(attempt);
  json["slow"] = listed.is_slow;
  return json;
}

JobToExport::JobToExport(const TraceOptions& choice)
    : directory(open_traces(choice.directory)), first(&choose(*directory, choice)) {
  const auto slow = slow_attempts(*directory);
  for (const auto& attempt : directory->attempts()) {
    const bool is_first = &attempt == first;
    const bool is_wanted = choice.attempt.empty() && fits(attempt, choice) && (!is_internal(attempt) || attempt.went_wrong());
    if (is_first || is_wanted) attempts.push_back({&attempt, slow.count(&attempt) > 0});
  }
  std::vector<ListedAttempt*> by_interest;
  for (auto& listed : attempts) by_interest.push_back(&listed);
  const auto interest_of = [&](const ListedAttempt& listed) {
    const TracedAttempt& attempt = *listed.attempt;
    return std::make_tuple(&attempt == first, attempt.went_wrong(), listed.is_slow, attempt.begin());
  };
  std::sort(by_interest.begin(), by_interest.end(), [&](auto* a, auto* b) { return interest_of(*a) > interest_of(*b); });
  std::uint64_t exported = 0;
  for (auto* listed : by_interest) {
    for (const auto& [rank, call] : listed->attempt->calls) exported += call.last_id - std::min(call.last_id, call.first_id - 1);
    listed->is_exported = listed->attempt == first || exported <= kExportedEventsMax;
  }
}

int trace_list(const TraceOptions& choice) {
  const auto directory = open_traces(choice.directory);
  const auto slow_ones = slow_attempts(*directory);
  Json list = Json::array();
  std::size_t hidden = 0;
  for (const auto& attempt : directory->attempts()) {
    if (!fits(attempt, choice)) continue;
    if (is_internal(attempt) && !attempt.went_wrong() && !choice.all && choice.attempt.empty()) {
      ++hidden;
      continue;
    }
    const bool slow = slow_ones.count(&attempt) > 0;
    list.push_back(to_json(ListedAttempt{&attempt, slow}));
    if (!choice.json)
      print_line(fmt::format("{:<9} {}  {:>10}  {}  {:>4} ranks  job {}  {}",
                             fmt::format("{}:{}", attempt.operation_name(), attempt.counter), time_of_day(attempt.begin()),
                             human_duration(attempt.duration()),
                             coloured(!attempt.went_wrong() && !attempt.has_failed() ? Colour::kGood : Colour::kBad,
                                      fmt::format("{:<15}", end_of(attempt) + std::string(slow ? ", slow" : ""))),
                             attempt.calls.size(), attempt.job.substr(0, 8), printable(attempt.describe())),
                 kTraceIndent);
  }
  if (choice.json) print_json(list);
  if (hidden != 0 && !choice.json) std::cout << counted(hidden, "internal agreement") << " not shown: --all\n";
  return kFine;
}

int trace_messages(const TraceOptions& options) {
  const OpenedTrace opened = open_chosen(options);
  std::vector<const ObservedEvent*> events;
  for (const auto& [rank, of_rank] : opened.trace.events)
    for (const auto& event : of_rank) events.push_back(&event);
  // Sort by aligned time. The alignment puts causes before their effects as far as possible.
  std::stable_sort(events.begin(), events.end(),
                   [&](const auto* a, const auto* b) { return opened.clocks.at(*a) < opened.clocks.at(*b); });
  const auto moment = [&](const std::string& text) -> std::optional<double> {
    if (text.empty()) return std::nullopt;
    std::tm parts{};
    if (const char* const end = ::strptime(text.c_str(), "%H:%M:%S", &parts); end != nullptr && (*end == 0 || *end == '.')) {
      const auto day = std::chrono::duration_cast<Duration>(std::chrono::hours(24)).count();
      const auto since_midnight =
          std::chrono::duration<double>(Duration(opened.diagnosis.begin.time_since_epoch().count() % day)).count();
      const double fraction = *end == '.' ? std::stod("0" + std::string(end)) : 0;
      return parts.tm_hour * 3600 + parts.tm_min * 60 + parts.tm_sec + fraction - since_midnight;
    }
    if (const auto seconds = parse_number<double>(text)) return seconds;
    throw WrongUse("\"" + printable(text) +
                   "\" is no time: give seconds from the beginning of the call (1.5), or a time of day (12:00:01.5)");
  };
  const auto since = moment(options.since);
  const auto until = moment(options.until);
  Json list = Json::array();
  std::uint64_t shown = 0;
  for (const auto* event : events) {
    if (options.rank && event->rank != *options.rank) continue;
    if (!options.actor.empty() && to_string(event->actor) != options.actor) continue;
    if (!options.name.empty() && name_of(*event).find(options.name) == std::string::npos) continue;
    if (!options.kind.empty() && options.kind != verb_of(event->kind)) continue;
    if (!options.phase.empty() && (!event->phase || options.phase != to_string(*event->phase))) continue;
    if (options.failed && event->ok) continue;
    const double seconds = opened.seconds(opened.clocks.at(*event));
    if ((since && seconds < *since) || (until && seconds > *until)) continue;
    const std::string text = describe_event(*event);
    if (!options.text.empty() && text.find(options.text) == std::string::npos) continue;
    if (++shown > options.limit && options.limit != 0) break;
    if (options.json) {
      list.push_back(to_json(opened, *event));
      continue;
    }
    std::string extra;
    if (event->bytes != 0) extra += ", " + human_bytes(event->bytes);
    if (event->queued > std::chrono::milliseconds(1)) extra += ", waited " + human_duration(event->queued);
    print_line(fmt::format("{:>12.6f}  rank {:<4} #{:<6} {}{}", seconds, event->rank, event->id, text, extra), kTraceIndent);
  }
  if (options.json)
    print_json(list);
  else if (shown == 0)
    std::cerr << "nothing that was recorded matches\n";
  return kFine;
}

// --- the command line ---

namespace {

constexpr const char* kOrigin =
    R"(Reads the events that ranks record. A failed save leaves its last events in failure-<save id>/ beside
the checkpoint. A job started with CAIRN_TRACE=DIR or cairn-launch --trace DIR writes all events to DIR.
If DIR is the directory of a run, reads the last failure there.

Examples:
  cairn trace run                               a summary: how it ended, where it failed, which ranks waited
)";
constexpr const char* kChoice = R"(
Without --attempt, shows the last save or load that failed or never ended; if there is none, the last one.
export writes all of them. If a directory has the name of a command, write cairn trace ./list.)";

void add_choice(CLI::App& command, TraceOptions& choice) {
  command.add_option("--attempt", choice.attempt,
                     "The save or load: its number (2, save:2, load:2), save id, a part of the checkpoint's id, or 'last'");
  command.add_option("--after", choice.after,
                     "Only saves and loads that began after this time: 2030-12-31T23:59:59 (UTC), or seconds since 1970");
  command.add_option("--job", choice.job, "The job: the beginning of its incarnation");
  command.add_flag("--json", choice.json, "Print JSON");
}

void add_filters(CLI::App& command, TraceOptions& filters) {
  command.add_option("--rank", filters.rank, "Only lines of this rank");
  command.add_option("--actor", filters.actor, "Only lines of this actor")
      ->check(CLI::IsMember({"runtime", "supervisor", "planner", "storage", "store", "coordinator"}));
  command.add_option("--name,--type", filters.name, "Only lines whose message type, hook or state contains this text");
  command.add_option("--kind", filters.kind, "Only lines of this kind")
      ->check(CLI::IsMember({"sent", "handled", "is", "began", "ended", "did", "called"}));
  command.add_option("--phase", filters.phase, "Only hooks and failures of this phase")
      ->check(CLI::IsMember({"join", "local_plan", "global_plan", "write", "read", "finish"}));
  command.add_option("--grep", filters.text, "Only lines that contain this text");
  command.add_option("--since", filters.since, "Only lines from this time on: seconds from the first call, or a time of day (UTC)");
  command.add_option("--until", filters.until, "Only lines up to this time");
  command.add_flag("--failed", filters.failed, "Only failures and ignored messages");
  command.add_option("--limit", filters.limit, "Print at most this many lines");
}

int summary(const TraceOptions& options) {
  if (options.directory.empty())
    throw WrongUse("trace: name a directory with traces; cairn trace --help says where they come from");
  return trace_summary(options);
}

}  // namespace

void add_trace(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<TraceOptions>();
  auto* const trace = app.add_subcommand("trace", "Show what went wrong, or what took long, in a save or load");
  trace->add_option("DIR", options->directory, "The directory with the traces");
  add_choice(*trace, *options);
  trace->callback([options, trace, &chosen] {
    if (trace->get_subcommands().empty()) chosen = [options] { return summary(*options); };
  });

  std::string all_examples = kOrigin;
  const auto add = [&](const char* name, const char* what, const std::string& examples, TraceCommand* run) {
    auto* const command =
        add_command(*trace, chosen, name, what, "Examples:\n" + examples, [options, run] { return run(*options); });
    all_examples += examples;
    command->add_option("DIR", options->directory, "The directory with the traces")->required();
    add_choice(*command, *options);
    return command;
  };
  add("explain", "Show the chain of causes of a failure and of the end, and the stacks of what hung",
      "  cairn trace explain run                       shows step by step what led to the failure and the end\n"
      "  cairn trace explain run --rank 2              shows it for rank 2\n",
      trace_explain)
      ->add_option("--rank", options->rank, "Explain only the failure and the end of the call on this rank");
  add("timeline", "Draw what each rank did over time", "  cairn trace timeline run                      draws one row per rank\n",
      trace_timeline)
      ->add_option("--columns", options->columns, "Width of the time axis in characters; by default, as many as fit")
      ->check(CLI::Range(10u, 1000u));
  add("critical-path", "Show the chain of messages and hooks that took the time",
      "  cairn trace critical-path run                 shows where the time went\n", trace_critical_path)
      ->add_option("--rank", options->rank, "End at this rank's return from the call, not at the last rank's");
  add_filters(*add("messages", "List messages, hooks and changes of state",
                   "  cairn trace messages run --name Written       every message and state; --since 1.5 --until 2 --failed "
                   "--grep TEXT\n",
                   trace_messages),
              *options);
  auto* const exported = add("export", "Write traces in the format of another tool",
                             "  cairn trace export run --to html -o job.html           a web page that opens at the failure\n"
                             "  cairn trace export run --to perfetto -o job.json       a file for ui.perfetto.dev\n",
                             trace_export);
  exported
      ->add_option("--to", options->format, "html: a page for any browser; perfetto: JSON for ui.perfetto.dev and chrome://tracing")
      ->required()
      ->check(CLI::IsMember({"html", "perfetto"}));
  exported->add_option("-o,--output", options->output, "The file to write; standard output by default");
  add("list", "List the saves and loads",
      "  cairn trace list traces                       lists all of them; choose one with --attempt save:2\n", trace_list)
      ->add_flag("--all", options->all, "Also list the agreements that Cairn makes itself");
  trace->footer(all_examples + kChoice);
}

}  // namespace cairn::tools
