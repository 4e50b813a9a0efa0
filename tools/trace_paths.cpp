// `cairn trace explain`, `timeline` and `critical-path`: why an attempt ended as it did, and where
// its time went.
#include <algorithm>
#include <iostream>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include <cairn/tools/terminal.hpp>
#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kStepsShown = 60;
constexpr std::size_t kFailuresExplained = 1;

void check_rank(const OpenedTrace& opened, std::optional<int> rank) {
  if (!rank || opened.trace.events.count(*rank) != 0) return;
  if (*rank < 0 || *rank >= opened.trace.job.world_size)
    throw WrongUse(fmt::format("there is no rank {} in a world of {}", *rank, opened.trace.job.world_size));
  throw WrongUse(fmt::format("rank {} has no trace of this call", *rank));
}

// Returns the state change that an event caused, to print beside it.
std::string state_after(const OpenedTrace& opened, const ObservedEvent& event) {
  std::string text;
  const auto& events = opened.trace.events.at(event.rank);
  for (auto at = static_cast<std::size_t>(&event - events.data()) + 1; at < events.size(); ++at) {
    const ObservedEvent& other = events[at];
    if (other.cause == event.id && other.kind == EventKind::kState && other.ok) {
      text += fmt::format("{}{}", text.empty() ? "  -> " : ", ", name_of(other));
    }
    if (other.id > event.id + 64) break;
  }
  return text;
}

// By state, in the order of RankState, which counts from 1.
constexpr std::string_view kLetters = " jP.#.e";
static_assert(kLetters.size() == static_cast<std::size_t>(RankState::kEnding), "each state needs a letter");

// Returns whether a rank sends its answer, with which its part in a phase ends. The coordinator's
// rank also passes on the answers of other ranks.
bool is_own_answer(const OpenedTrace& opened, const ObservedEvent& event) {
  const auto* const kind = event.as<MessageKind>();
  if (event.kind != EventKind::kSent || kind == nullptr || !is_answer(*kind)) return false;
  const auto* const cause = opened.trace.find(event.rank, event.cause);
  return cause == nullptr || cause->kind != EventKind::kHandled || cause->what != event.what;
}

}  // namespace

int trace_explain(const TraceOptions& options) {
  const std::optional<int> rank = options.rank;
  const OpenedTrace opened = open_chosen(options);
  check_rank(opened, rank);
  auto sections = explain(opened.trace, opened.clocks, opened.diagnosis, rank);
  // Explain only the first failures. The others usually have similar causes, and `--rank` explains
  // each.
  std::size_t failures = 0, unsaid = 0;
  for (auto section = sections.begin(); section != sections.end();) {
    const bool is_one_more = section->failure != nullptr && ++failures > kFailuresExplained;
    section = is_one_more ? (++unsaid, sections.erase(section)) : section + 1;
  }
  Json json = Json::array();
  const std::vector<ChainLink>* previous = nullptr;
  for (const auto& section : sections) {
    Json steps = Json::array();
    std::size_t common = 0;
    while (previous != nullptr && common < std::min(previous->size(), section.chain.size()) &&
           (*previous)[common].event == section.chain[common].event)
      ++common;
    previous = &section.chain;
    if (!options.json) print_line(section.title, kTraceIndent);
    std::optional<WallTime> before;
    std::size_t skipped = section.chain.size() > kStepsShown ? section.chain.size() - kStepsShown : 0;
    const bool is_as_above = common > skipped + 1 && common < section.chain.size();
    if (is_as_above) skipped = common - 1;
    if (!options.json && skipped != 0)
      std::cout << fmt::format("  … {} {}\n", skipped, is_as_above ? "steps as above" : "earlier steps: --json");
    for (std::size_t i = 0; i < section.chain.size(); ++i) {
      const auto& link = section.chain[i];
      const WallTime time = opened.clocks.at(*link.event);
      if (options.json) {
        steps.push_back(to_json(opened, *link.event));
        if (link.waited) steps.back()["waited"] = true;
      } else if (i >= skipped) {
        print_line(fmt::format("  {:>10.6f} {:>10}  rank {:<3} {}{}{}", opened.seconds(time),
                               before ? "+" + human_duration(time - *before) : "", link.event->rank, describe_event(*link.event),
                               state_after(opened, *link.event), link.waited ? "  … and waited" : ""),
                   kTraceIndent);
      }
      before = time;
    }
    Json entry{{"title", section.title}, {"rank", section.rank}};
    if (section.failure != nullptr) entry["phase"] = text_of(section.failure->phase);
    entry["steps"] = std::move(steps);
    json.push_back(std::move(entry));
    if (!options.json) std::cout << '\n';
  }
  for (auto& stack : trace_stacks(opened, rank, !options.json)) json.push_back(std::move(stack));
  if (unsaid != 0 && !options.json)
    std::cout << fmt::format("{} more failed: explain --rank N says what led to that of rank N\n", unsaid);
  if (options.json) print_json(json);
  if (sections.empty() && !options.json) std::cout << "no outcome of the call is in the traces\n";
  return kFine;
}

int trace_timeline(const TraceOptions& options) {
  unsigned columns = options.columns;
  const OpenedTrace opened = open_chosen(options);
  WallTime end = opened.diagnosis.begin;
  for (const auto& [rank, events] : opened.trace.events)
    for (const auto& event : events) {
      end = std::max(end, opened.clocks.at(event));
      if (event.kind == EventKind::kOutcome) break;
    }
  const double whole = std::max(1e-9, opened.seconds(end));
  std::map<int, std::string> fates;
  std::size_t beside_row = 12;  // "rank    0 |" and "|"
  for (const auto& failure : opened.diagnosis.failures) {
    fates[failure.rank] = fmt::format("{} in {}", kind_text(failure), text_of(failure.phase));
    beside_row = std::max(beside_row, 13 + fates[failure.rank].size());
  }
  if (columns == 0) columns = static_cast<unsigned>(std::clamp(output_columns() - static_cast<int>(beside_row), 10, 1000));
  const auto column_of = [&](double seconds) {
    return std::min<std::size_t>(columns - 1, static_cast<std::size_t>(std::clamp(seconds / whole, 0.0, 1.0) * columns));
  };
  Json rows = Json::array();
  for (const auto& [rank, events] : opened.trace.events) {
    std::string row(columns, ' ');
    Json spans = Json::array();
    char letter = ' ';
    bool unanswered = false;  // its part is done, and the answer not sent yet
    double since = 0;
    const auto paint = [&](double until, bool to_the_end) {
      if (letter == ' ') return;
      // Events are in the order of their ids, which two threads may take in another order than
      // they read the clock.
      for (std::size_t column = column_of(since); column <= column_of(until); ++column) row[column] = letter;
      spans.push_back({{"state", std::string(1, letter)}, {"from_seconds", since}, {"to_seconds", until}, {"ended", !to_the_end}});
    };
    double last = 0;
    bool has_ended = false;
    for (const auto& event : events) {
      const double seconds = opened.seconds(opened.clocks.at(event));
      last = seconds;
      if (event.kind == EventKind::kOutcome) {
        paint(seconds, false);
        letter = ' ';
        has_ended = true;
        break;
      }
      const RankState* const state = event.as<RankState>();
      char next = state != nullptr ? kLetters[static_cast<std::size_t>(*state) - 1] : '\0';
      if (next == '.' && letter != ' ' && letter != '.') {
        unanswered = true;
        continue;
      }
      if (unanswered && is_own_answer(opened, event)) next = '.';
      if (next == 0) continue;
      unanswered = false;
      paint(seconds, false);
      letter = next;
      since = seconds;
    }
    if (letter != ' ') paint(last, true);
    if (!has_ended) row.replace(column_of(last) + 1, std::string::npos, columns - column_of(last) - 1, '?');
    // States must not hide the failure.
    for (const auto& event : events)
      if (event.kind == EventKind::kFailure) row[column_of(opened.seconds(opened.clocks.at(event)))] = 'X';
    const auto fate = fates.find(rank);
    const std::string beside = fate == fates.end() ? "" : " " + coloured(Colour::kBad, fate->second);
    if (!options.json) std::cout << fmt::format("rank {:>4} |{}|{}\n", rank, row, beside);
    rows.push_back({{"rank", rank}, {"spans", std::move(spans)}});
  }
  for (const int rank : opened.trace.job.missing)
    if (!options.json) std::cout << fmt::format("rank {:>4} |{:<{}}|\n", rank, "no trace", columns);
  if (options.json) {
    print_json({{"seconds", whole}, {"ranks", std::move(rows)}});
    return kFine;
  }
  std::cout << fmt::format("{:>10}0{:>{}}\n", "", human_duration(end - opened.diagnosis.begin), columns);
  print_line("j joins   P plans   # writes or reads   . waits   e lets go   ? nothing was recorded   X was told of a failure", 0);
  return kFine;
}

int trace_critical_path(const TraceOptions& options) {
  const OpenedTrace opened = open_chosen(options);
  check_rank(opened, options.rank);
  const auto* const outcome = last_outcome(opened.trace, opened.clocks, options.rank);
  if (outcome == nullptr)
    throw Error(ErrorCode::kNotFound, "no outcome of the call is in the traces: cairn trace shows how far it came");
  const auto steps = critical_path(opened.trace, opened.clocks, *outcome);
  Duration whole{0};
  for (const auto& step : steps) whole += step.duration;
  const auto percent = [&](Duration part) {
    return whole.count() == 0 ? 0 : 100.0 * static_cast<double>(part.count()) / static_cast<double>(whole.count());
  };
  Json json = Json::array();
  Duration rest{0};
  for (const auto& step : steps) {
    const double share = percent(step.duration);
    if (options.json) {
      json.push_back({{"rank", step.rank},
                      {"what", step.what},
                      {"begin_seconds", opened.seconds(step.begin)},
                      {"seconds", in_seconds(step.duration)},
                      {"percent", share}});
    } else if (share < 1) {
      rest += step.duration;
    } else {
      print_line(fmt::format("{:>5.1f} %  {:>10}  from {:>10.6f}  rank {:<3} {}", share, human_duration(step.duration),
                             opened.seconds(step.begin), step.rank, step.what),
                 kTraceIndent);
    }
  }
  if (options.json)
    print_json(json);
  else
    std::cout << fmt::format("{:>5.1f} %  {:>10}  in steps of less than 1 %\n", percent(rest), human_duration(rest))
              << fmt::format("         {:>10}  until the end of the call on rank {}\n", human_duration(whole), outcome->rank);
  return kFine;
}

}  // namespace cairn::tools
