#include <cairn/tests/simulation/order.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

// Returns the number of the job's call, counted from 1, that made this save; nothing if another job
// did.
std::optional<std::uint64_t> call_of(const Job& job, const Ledger& ledger, const std::string& save_id) {
  const auto version = ledger.version_of(save_id);
  const auto& program = job.spec().program;
  const auto call = std::find_if(program.begin(), program.end(), [&](const CallSpec& spec) {
    return version && spec.operation == protocol::Operation::kSave && spec.version.content == version->content;
  });
  if (call == program.end()) return std::nullopt;
  return static_cast<std::uint64_t>(call - program.begin()) + 1;
}

void check_publications(const Job& job, Ledger& ledger) {
  std::uint64_t newest = 0;
  for (const std::string& save_id : ledger.publications()) {
    const auto call = call_of(job, ledger, save_id);
    if (!call) continue;
    if (*call < newest)
      ledger.accuse("job " + std::to_string(job.index()) + ": " + save_id + " of call " + std::to_string(*call) +
                    " was published after that of call " + std::to_string(newest));
    newest = std::max(newest, *call);
  }
}

void check_places(const Job& job, Ledger& ledger) {
  std::map<std::string, const Report*> reported;  // by place: the last committed save
  for (const Report& report : ledger.reports()) {
    if (report.job != job.index() || report.operation != protocol::Operation::kSave) continue;
    if (report.finished.committed != Committed::kYes) continue;
    auto& last = reported[job.spec().program[report.ordinal - 1].place];
    if (last == nullptr || last->ordinal < report.ordinal) last = &report;
  }
  const auto publications = ledger.publications();
  const auto number_of = [&](const std::string& save_id) {  // position among all publications, from 1; 0: not published
    const auto found = std::find(publications.begin(), publications.end(), save_id);
    return found == publications.end() ? 0 : found - publications.begin() + 1;
  };
  for (const auto& [place, last] : reported) {
    const std::string save_id = ledger.current(place).value_or("");
    if (number_of(save_id) < number_of(last->finished.save_id))
      ledger.accuse("job " + std::to_string(job.index()) + ": " + place + " holds \"" + save_id + "\", but call " +
                    std::to_string(last->ordinal) + " was reported as committed there");
  }
}

}  // namespace

void check_order(Job& job, Ledger& ledger, Coverage& coverage) {
  check_publications(job, ledger);
  check_places(job, ledger);
  for (std::uint64_t call = 1; call <= job.spec().program.size(); ++call) {
    bool replaced = false;
    bool spared = false;
    for (int rank = 0; rank < job.size(); ++rank) {
      replaced = replaced || job.rank(rank).has_replaced(call);
      spared = spared || job.rank(rank).has_spared(call);
    }
    if (replaced && spared) coverage.hit("replaced before its turn on some ranks, and after it on others");
  }
}

}  // namespace cairn::simulation
