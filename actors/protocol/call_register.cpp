#include <cairn/actors/protocol/call_register.hpp>

#include <cairn/actors/protocol/events.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace cairn::protocol {

std::string quoted_id(const std::string& checkpoint_id) {
  constexpr std::size_t kShownAtEitherEnd = 256;
  if (checkpoint_id.size() <= 2 * kShownAtEitherEnd) return "\"" + checkpoint_id + "\"";
  return "\"" + checkpoint_id.substr(0, kShownAtEitherEnd) + "[...]" +
         checkpoint_id.substr(checkpoint_id.size() - kShownAtEitherEnd) + "\"";
}

std::string describe_call(const Join& join) {
  return std::string(to_string(join.operation)) + " of " + quoted_id(join.checkpoint_id) + " (its call " +
         std::to_string(join.ordinal) + ")";
}

std::optional<CallRegister::Disagreement> CallRegister::add(int from, const Join& join) {
  for (const auto& known : known_)
    if (is_same_call(known.join, join)) return Disagreement{known.ending, {{from, join.ticket}}};
  const auto last = calls_.find(from);
  if (last != calls_.end() && last->second.ticket >= join.ticket) return std::nullopt;  // a duplicate, or late
  calls_.insert_or_assign(from, join);

  std::map<int, const Join*> callers;
  for (const auto& [rank, call] : calls_)
    if (is_same_call(call, join)) callers.emplace(rank, &call);
  const FailureMap failures = judge(callers);
  if (failures.empty()) return std::nullopt;
  known_.push_back({join, make_ending(failures, Committed::kNo, {})});
  if (known_.size() > kept_max_) known_.pop_front();
  Disagreement found{known_.back().ending, {}};
  for (const auto& [rank, call] : callers) found.tickets.emplace(rank, call->ticket);
  return found;
}

// Ranks whose coordinator is none, and ranks whose coordinator is not that of the lowest rank.
FailureMap CallRegister::judge(const std::map<int, const Join*>& callers) const {
  FailureMap failures;
  const auto add = [&](int rank, ErrorCode code, const Join& join, const std::string& why) {
    failures.emplace(rank, make_failure(rank, Phase::kJoin, FailureKind::kRaised, code, "coordinator",
                                        "rank " + std::to_string(rank) + " called " + describe_call(join) +
                                            " with coordinator_rank " + std::to_string(join.coordinator_rank) + ", " + why +
                                            "; pass the same rank of the world on every rank"));
  };
  const auto& [lowest, reference] = *callers.begin();
  for (const auto& [rank, join] : callers) {
    if (join->coordinator_rank < 0 || join->coordinator_rank >= world_size_)
      add(rank, ErrorCode::kInvalidArgument, *join, "which is no rank of a world of " + std::to_string(world_size_));
    else if (join->coordinator_rank != reference->coordinator_rank)
      add(rank, ErrorCode::kMismatch, *join,
          "where rank " + std::to_string(lowest) + " called it with " + std::to_string(reference->coordinator_rank));
  }
  return failures;
}

}  // namespace cairn::protocol
