#include <cairn/runtime/trace_check.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/actors/recording/event_codec.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/base/save_id.hpp>

namespace cairn {
namespace {

constexpr std::size_t kGapsMax = 64;  // per rank

constexpr std::int64_t kWaitMaxMs = std::int64_t{366} * 24 * 3600 * 1000;

std::chrono::milliseconds wait_of(std::int64_t milliseconds) {
  if (milliseconds < 0 || milliseconds > kWaitMaxMs)
    throw Error(ErrorCode::kCorrupt, "a deadline of " + std::to_string(milliseconds) + " ms");
  return std::chrono::milliseconds(milliseconds);
}

// In a running job the links guarantee that a peer is a rank of the world. A recording has no such
// guarantee.
void check_peer(const protocol::Event& event, int world_size) {
  const bool has_peer = std::holds_alternative<protocol::Received>(event) || std::holds_alternative<protocol::PeerDown>(event) ||
                        std::holds_alternative<protocol::PeerUp>(event);
  const int peer = recording::peer_of(event);
  if (has_peer && (peer < 0 || peer >= world_size))
    throw Error(ErrorCode::kCorrupt, "it is of rank " + std::to_string(peer) + " of a world of " + std::to_string(world_size));
}

// A state machine that is replayed.
struct Machine {
  Machine(const v1::MachineMade& made, const TraceHeader& header) : checkpointer(made.checkpointer()) {
    protocol::Identity identity{header.rank, header.world_size, header.incarnation, made.checkpointer(), made.counter_floor()};
    RuntimeOptions options;
    options.join_deadline = wait_of(made.join_deadline_ms());
    options.phase_deadline = wait_of(made.phase_deadline_ms());
    options.outcome_grace = wait_of(made.outcome_grace_ms());
    options.phase_grace = wait_of(made.phase_grace_ms());
    options.cancel_grace = wait_of(made.cancel_grace_ms());
    options.silence = wait_of(made.silence_ms());
    options.progress_interval = wait_of(made.progress_interval_ms());
    options.successors_asked = made.successors_asked();
    options.outcomes_kept = made.outcomes_kept();
    if (made.kind() == v1::MACHINE_KIND_COORDINATOR)
      machine.emplace<protocol::CoordinatorMachine>(std::move(identity), options);
    else
      machine.emplace<protocol::RankMachine>(std::move(identity), options);
  }

  protocol::Effects step(const protocol::Event& event) {
    if (auto* rank = std::get_if<protocol::RankMachine>(&machine)) return rank->step(event);
    return std::get<protocol::CoordinatorMachine>(machine).step(event);
  }
  std::string state() const {
    if (const auto* rank = std::get_if<protocol::RankMachine>(&machine)) return to_string(rank->state());
    return to_string(std::get<protocol::CoordinatorMachine>(machine).state());
  }

  std::string checkpointer;
  std::variant<std::monostate, protocol::RankMachine, protocol::CoordinatorMachine> machine;
  recording::PlanDigests digests;
  std::uint64_t steps = 0;  // taken so far
  bool given_up = false;
};

// Returns a decision as lines: the state, then each effect.
std::vector<std::string> lines_of(const std::string& state, const std::string& error, std::vector<std::string> effects) {
  std::vector<std::string> lines;
  if (!error.empty()) lines.push_back("break: " + error);
  lines.push_back("state \"" + state + "\"");
  for (auto& effect : effects) lines.push_back(std::move(effect));
  return lines;
}

class RankChecker {
 public:
  RankChecker(const TraceHeader& header, CheckedRank& result) : header_(header), result_(result) {}

  void take(const ObservedEvent& event) {
    if (event.kind != EventKind::kDecision) return;
    v1::Decision decision;
    if (event.content.empty() || !decision.ParseFromArray(event.content.data(), static_cast<int>(event.content.size())))
      return;  // reported as missing at the machine's next step
    if (decision.has_made()) return make(event, decision.made());
    const auto found = machines_.find(decision.machine());
    if (found == machines_.end()) {
      if (unknown_++ == 0) gap("some decisions are of machines whose making is not in the recording: its beginning is missing");
      return;
    }
    if (decision.has_dropped()) {
      machines_.erase(found);
      return;
    }
    Machine& machine = found->second;
    if (machine.given_up) return;
    if (decision.step() != machine.steps + 1) {
      machine.given_up = true;
      return gap("the " + std::string(event.actor) + " of checkpointer \"" + machine.checkpointer +
                 "\" is compared up to its step " + std::to_string(machine.steps) + ": the next that could be read is " +
                 std::to_string(decision.step()));
    }
    machine.steps = decision.step();
    compare(event, decision, machine);
  }

  void gap(std::string text) {
    if (result_.gaps.size() < kGapsMax) result_.gaps.push_back(std::move(text));
  }

 private:
  void make(const ObservedEvent& event, const v1::MachineMade& made) {
    try {
      machines_.try_emplace(event.id, made, header_);
      ++result_.machines;
    } catch (const Error& fault) {
      gap("the making of a machine cannot be read: " + std::string(fault.what()));
    }
  }

  void compare(const ObservedEvent& event, const v1::Decision& decision, Machine& machine) {
    const auto give_up = [&](const std::string& why) {
      machine.given_up = true;
      gap("the " + std::string(event.actor) + " of checkpointer \"" + machine.checkpointer + "\" is compared up to its step " +
          std::to_string(machine.steps - 1) + ": " + why);
    };
    if (decision.has_left_out()) return give_up("the event of the next was not recorded, " + decision.left_out());
    const std::string before = machine.state();
    std::vector<std::string> effects;
    std::string error;
    protocol::Event given;
    try {
      given = recording::from_proto(decision.event(), machine.digests);
      check_peer(given, header_.world_size);
    } catch (const Error& fault) {
      return give_up(fault.what());
    }
    try {
      effects = recording::in_words(machine.step(given), machine.digests);
    } catch (const std::exception& broken) {
      error = broken.what();
    }
    ++result_.decisions;
    const auto expected = lines_of(decision.state(), decision.error(), {decision.effects().begin(), decision.effects().end()});
    const auto got = lines_of(machine.state(), error, std::move(effects));
    if (expected == got) return;
    machine.given_up = true;
    std::size_t at = 0;
    while (at < std::min(expected.size(), got.size()) && expected[at] == got[at]) ++at;
    TraceDifference difference;
    difference.rank = header_.rank;
    difference.actor = event.actor;
    difference.checkpointer = machine.checkpointer;
    difference.attempt = event.attempt;
    difference.step = decision.step();
    difference.event = event.id;
    difference.given = recording::name_of(given);
    if (const int peer = recording::peer_of(given); peer >= 0) difference.given += " from rank " + std::to_string(peer);
    difference.state = before;
    difference.time = event.wall_time;
    difference.expected = at < expected.size() ? expected[at] : "nothing more";
    difference.got = at < got.size() ? got[at] : "nothing more";
    result_.differences.push_back(std::move(difference));
  }

  const TraceHeader header_;
  CheckedRank& result_;
  std::map<std::uint64_t, Machine> machines_;  // by the id of the event that made them
  std::uint64_t unknown_ = 0;
};

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

bool TraceCheck::has_compared() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.decisions != 0; });
}

bool TraceCheck::agrees() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.differences.empty(); });
}

const TraceDifference* TraceCheck::first() const {
  const TraceDifference* first = nullptr;
  for (const auto& rank : ranks)
    for (const auto& difference : rank.differences)
      if (first == nullptr || difference.time < first->time) first = &difference;
  return first;
}

TraceCheck check_traces(const TraceDirectory& directory, const std::string& job) {
  TraceCheck check;
  std::optional<RankChecker> checker;
  std::uint32_t last_part = 0;
  check.ranks.reserve(directory.files().size());  // checkers keep references to its elements
  for (const auto& file : directory.files()) {
    if (!file.header || !file.fault.empty()) {
      check.left_out.push_back(file.fault);
      continue;
    }
    const TraceHeader& header = *file.header;
    if (header.incarnation.rfind(job, 0) != 0) continue;
    const std::string name = file_name(file.path);
    if (header.source == TraceSource::kRing) {
      check.left_out.push_back(
          name + " is what a ring held: states and digests of the last decisions, which cannot be gone through again");
      continue;
    }
    if (!header.contents) {
      check.left_out.push_back(name +
                               " was recorded without contents: only what CAIRN_TRACE=full:DIR records can be gone through again");
      continue;
    }
    const bool goes_on =
        !check.ranks.empty() && check.ranks.back().job == header.incarnation && check.ranks.back().rank == header.rank;
    if (!goes_on) {
      CheckedRank rank;
      rank.job = header.incarnation;
      rank.rank = header.rank;
      rank.cairn_version = header.cairn_version;
      check.ranks.push_back(std::move(rank));
      checker.emplace(header, check.ranks.back());
      last_part = 0;
    }
    if (header.part != last_part + 1)
      checker->gap(last_part == 0 ? "its first files are not here: " + name + " is part " + std::to_string(header.part)
                                  : "files between part " + std::to_string(last_part) + " and " + name + " are not here");
    last_part = header.part;
    TraceFileReader reader(file.path, nullptr, true);
    ObservedEvent event;
    while (reader.next(event)) checker->take(event);
    if (!reader.damage().empty()) checker->gap(name + " is damaged in " + std::to_string(reader.damage().size()) + " places");
    if (reader.bytes_cut() != 0) checker->gap(name + " was cut off");
  }
  for (const auto& known : directory.jobs())
    if (known.incarnation.rfind(job, 0) == 0 && !known.missing.empty())
      check.left_out.push_back("of " + name_ranks(known.missing) + " of job " + known.incarnation.substr(0, 8) +
                               " nothing is here");
  return check;
}

}  // namespace cairn
