// `cairn trace check`: checks that this version's state machines decide as the recorded ones did.
#include <iostream>

#include <fmt/format.h>

#include <cairn/base/version.hpp>
#include <cairn/runtime/tools/trace.hpp>
#include <cairn/runtime/trace_check.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kDifferencesShown = 10;
constexpr std::size_t kLeftOutShown = 8;

Json to_json(const TraceDifference& difference) {
  return {{"rank", difference.rank},
          {"actor", difference.actor},
          {"checkpointer", difference.checkpointer},
          {"attempt", difference.attempt},
          {"step", difference.step},
          {"event", difference.event},
          {"time", time_of_day(difference.time)},
          {"given", difference.given},
          {"state", difference.state},
          {"expected", difference.expected},
          {"got", difference.got}};
}

Json to_json(const TraceCheck& check) {
  Json json{{"agrees", check.agrees()}};
  json["ranks"] = Json::array();
  for (const auto& rank : check.ranks) {
    Json differences = Json::array();
    for (const auto& difference : rank.differences) differences.push_back(to_json(difference));
    json["ranks"].push_back({{"job", rank.job},
                             {"rank", rank.rank},
                             {"cairn_version", rank.cairn_version},
                             {"machines", rank.machines},
                             {"decisions", rank.decisions},
                             {"differences", std::move(differences)},
                             {"gaps", rank.gaps}});
  }
  json["left_out"] = check.left_out;
  if (const auto* first = check.first()) json["first"] = to_json(*first);
  return json;
}

void print(const TraceDifference& difference) {
  std::cout << printable(
                   fmt::format("rank {}, {} of checkpointer \"{}\", step {} (event #{}, attempt {}, {} UTC): given {} as \"{}\"",
                               difference.rank, difference.actor, difference.checkpointer, difference.step, difference.event,
                               difference.attempt, time_of_day(difference.time), difference.given, difference.state))
            << "\n  expected  " << printable(difference.expected) << "\n  got       " << printable(difference.got) << '\n';
}

void print(const TraceCheck& check) {
  std::uint64_t decisions = 0, machines = 0;
  std::size_t differences = 0;
  for (const auto& rank : check.ranks) {
    decisions += rank.decisions;
    machines += rank.machines;
    differences += rank.differences.size();
  }
  if (const auto* first = check.first()) {
    std::cout << fmt::format("DIFFERENT: {} of {} state machines have decided otherwise than was recorded; the first one:\n",
                             differences, machines);
    print(*first);
    std::size_t shown = 1;
    for (const auto& rank : check.ranks)
      for (const auto& difference : rank.differences)
        if (&difference != first && shown++ < kDifferencesShown) print(difference);
    if (differences > kDifferencesShown) std::cout << fmt::format("… and {} more: --json\n", differences - kDifferencesShown);
  } else {
    std::cout << fmt::format("the state machines decide as was recorded: {} decisions of {} machines of {} ranks\n", decisions,
                             machines, check.ranks.size());
  }
  for (const auto& rank : check.ranks) {
    if (rank.cairn_version != kVersion)
      std::cout << fmt::format("rank {}: recorded by Cairn {}, and this is {}: a difference may be meant\n", rank.rank,
                               printable(rank.cairn_version), kVersion);
    for (const auto& gap : rank.gaps) std::cout << fmt::format("rank {}: {}\n", rank.rank, printable(gap));
  }
  for (std::size_t i = 0; i < std::min(check.left_out.size(), kLeftOutShown); ++i)
    std::cout << "not compared: " << printable(check.left_out[i]) << '\n';
  if (check.left_out.size() > kLeftOutShown)
    std::cout << fmt::format("… and {} more not compared: --json\n", check.left_out.size() - kLeftOutShown);
}

}  // namespace

int trace_check(const TraceChoice& choice) {
  const TraceDirectory directory = open_traces(choice.directory);
  const TraceCheck check = check_traces(directory, choice.job);
  if (!check.has_compared()) {
    std::string reasons;
    for (std::size_t i = 0; i < std::min(check.left_out.size(), kLeftOutShown); ++i)
      reasons += "\n  " + printable(check.left_out[i]);
    for (const auto& rank : check.ranks)
      for (const auto& gap : rank.gaps) reasons += fmt::format("\n  rank {}: {}", rank.rank, printable(gap));
    throw Error(ErrorCode::kNotFound, fmt::format("nothing in {} can be gone through again: record with CAIRN_TRACE=full:DIR{}",
                                                  directory.path(), reasons));
  }
  if (choice.json)
    print_json(to_json(check));
  else
    print(check);
  return check.agrees() ? kFine : kFoundBad;
}

}  // namespace cairn::tools
