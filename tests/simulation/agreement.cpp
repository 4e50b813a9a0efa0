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
bool are_alike(const protocol::Finished& a, const protocol::Finished& b) {
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
    const auto& absences = job.rank(rank).absences();
    if (std::any_of(absences.begin(), absences.end(), meets)) return false;
    for (const int peer : ranks) {
      const auto cuts = job.network().cuts(rank, peer);
      if (std::any_of(cuts.begin(), cuts.end(), meets)) return false;
    }
  }
  return true;
}

}  // namespace

void check_agreement(Job& job, Ledger& ledger) {
  std::map<std::uint64_t, std::vector<const Report*>> calls;
  for (const Report& report : ledger.reports())
    if (report.job == job.index()) calls[report.ordinal].push_back(&report);
  bool in_step = true;
  for (const auto& [ordinal, reports] : calls) {
    Duration first_end = Duration::max();
    for (const Report* report : reports) first_end = std::min(first_end, report->ended);
    const auto first_disagreement = [&]() -> std::string {
      for (std::size_t i = 0; i < reports.size(); ++i) {
        for (std::size_t j = i + 1; j < reports.size(); ++j) {
          const Report& a = *reports[i];
          const Report& b = *reports[j];
          const bool one_attempt = !a.finished.save_id.empty() && a.finished.save_id == b.finished.save_id;
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
    if (!found.empty()) ledger.accuse("job " + std::to_string(job.index()) + ", call " + std::to_string(ordinal) + ": " + found);
  }
}

}  // namespace cairn::simulation
