#include <cairn/tests/simulation/agreement.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

constexpr Duration kOnItsWayMax = std::chrono::milliseconds(500);  // of a message between ranks that nothing blocks

// A rank that never heard that the attempt began has no save id for it.
bool are_alike(const protocol::CallResult& a, const protocol::CallResult& b) {
  const bool one_unnamed = a.save_id.empty() || b.save_id.empty();
  return a.failures == b.failures && a.committed == b.committed && (a.save_id == b.save_id || one_unnamed);
}

// `first_end` is the time when the first rank had ended the call.
bool could_talk(Job& job, const Report& a, const Report& b, Duration first_end) {
  const Span span{std::min(a.began, b.began), std::max(a.ended, b.ended)};
  const auto meets = [&](const Span& other) { return span.meets(other); };
  const int coordinator = job.spec().program[a.ordinal - 1].coordinator;
  std::set<int> ranks{a.rank, b.rank};
  // A rank that makes the call after the other has ended it hears the outcome from the coordinator.
  if (!Span{a.began, a.ended}.meets({b.began, b.ended})) ranks.insert(coordinator);
  // So does a rank that lost its link in between. A coordinator actor created after the outcome was
  // sent does not know the outcome.
  const Span between{first_end - kOnItsWayMax, std::max(a.ended, b.ended)};
  for (const Duration death : job.rank(coordinator).coordinator_deaths())
    if (between.meets({death, death})) return false;
  for (const int rank : ranks) {
    if (job.rank(rank).troubles.unsendable.count(a.ordinal) != 0) return false;
    const auto& absences = job.rank(rank).absences();
    if (std::any_of(absences.begin(), absences.end(), meets)) return false;
    for (const int peer : ranks) {
      const auto cuts = job.network().cuts(rank, peer);
      if (std::any_of(cuts.begin(), cuts.end(), meets)) return false;
    }
  }
  return true;
}

// Returns whether a coordinator that stood still, with all its links sound, blames the ranks that
// gave up on it and ended the call.
bool blames_others(Job& job, const Report& own, const Report& other) {
  if (own.rank != job.spec().program[own.ordinal - 1].coordinator || own.finished.save_id.empty() ||
      own.finished.save_id != other.finished.save_id)
    return false;
  const Span span{std::min(own.began, other.began), std::max(own.ended, other.ended)};
  const auto& absences = job.rank(own.rank).absences();
  if (std::none_of(absences.begin(), absences.end(), [&](const Span& absence) { return span.meets(absence); })) return false;
  for (int peer = 0; peer < job.size(); ++peer) {
    const auto cuts = job.network().cuts(own.rank, peer);
    if (std::any_of(cuts.begin(), cuts.end(), [&](const Span& cut) { return span.meets(cut); })) return false;
  }
  // A rank that was killed did not give up.
  const auto gave_up = [&](const auto& entry) {
    return entry.second.what.find("closed by the peer") != std::string::npos && job.rank(entry.first).alive();
  };
  return !own.finished.failures.empty() && own.finished.failures.count(own.rank) == 0 &&
         std::all_of(own.finished.failures.begin(), own.finished.failures.end(), gave_up) &&
         other.finished.failures.count(own.rank) != 0;
}

}  // namespace

void check_agreement(Job& job, Ledger& ledger) {
  std::map<std::uint64_t, std::vector<const Report*>> calls;
  for (const Report& report : ledger.reports())
    if (report.job == job.index()) calls[report.ordinal].push_back(&report);
  bool in_step = true;
  for (const auto& call : calls) {
    const auto& reports = call.second;
    Duration first_end = Duration::max();
    for (const Report* report : reports) first_end = std::min(first_end, report->ended);
    const auto first_disagreement = [&]() -> std::string {
      for (std::size_t i = 0; i < reports.size(); ++i) {
        for (std::size_t j = i + 1; j < reports.size(); ++j) {
          const Report& a = *reports[i];
          const Report& b = *reports[j];
          const bool one_attempt = !a.finished.save_id.empty() && a.finished.save_id == b.finished.save_id;
          if (blames_others(job, a, b) || blames_others(job, b, a))
            return "ranks " + std::to_string(a.rank) + " and " + std::to_string(b.rank) + " blame each other: \"" +
                   to_string(a.finished) + "\", \"" + to_string(b.finished) + "\"";
          if (!in_step && !one_attempt) continue;
          if (are_alike(a.finished, b.finished) || !could_talk(job, a, b, first_end)) continue;
          return "ranks " + std::to_string(a.rank) + " and " + std::to_string(b.rank) + " could talk, but one ended with \"" +
                 to_string(a.finished) + "\"" + (a.heard ? "" : " (alone)") + ", the other with \"" + to_string(b.finished) + "\"" +
                 (b.heard ? "" : " (alone)");
        }
      }
      return {};
    };
    const std::string found = first_disagreement();
    in_step = in_step && std::all_of(reports.begin(), reports.end(), [&first = *reports.front()](const Report* report) {
                return same_outcome(report->finished, first.finished);
              });
    if (!found.empty()) ledger.accuse("job " + std::to_string(job.index()) + ", call " + std::to_string(call.first) + ": " + found);
  }
}

}  // namespace cairn::simulation
