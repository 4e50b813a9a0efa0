#include <cairn/actors/protocol/call_register.hpp>

#include <cairn/actors/protocol/events.hpp>

namespace cairn::protocol {

std::string describe_call(Operation operation, const std::string& checkpoint_id) {
  constexpr std::size_t kShownAtEitherEnd = 256;
  const std::string what = std::string(to_string(operation)) + (operation == Operation::kAgree ? " on \"" : " of \"");
  if (checkpoint_id.size() <= 2 * kShownAtEitherEnd) return what + checkpoint_id + "\"";
  return what + checkpoint_id.substr(0, kShownAtEitherEnd) + "[...]" +
         checkpoint_id.substr(checkpoint_id.size() - kShownAtEitherEnd) + "\"";
}

std::string describe_call(const Join& join) {
  return describe_call(join.operation, join.checkpoint_id) + " (its call " + std::to_string(join.ordinal) + ")";
}

std::optional<CallRegister::Disagreement> CallRegister::add(int from, const Join& join) {
  last_.resize(static_cast<std::size_t>(world_size_));
  Last& last = last_[static_cast<std::size_t>(from)];
  auto& call = *calls_.try_emplace(Key{join.operation, join.checkpoint_id, join.ordinal}, Call{join.coordinator_rank, 0, {}}).first;
  if (call.second.ending) return Disagreement{call.second.ending, {{from, join.ticket}}};
  if (last.ticket >= join.ticket) {  // a duplicate, or a late message
    if (call.second.callers == 0) calls_.erase(calls_.find(call.first));
    return std::nullopt;
  }
  ++call.second.callers;
  leave(last);
  last = {join.ticket, &call};
  if (call.second.callers == 1) call.second.coordinator_rank = join.coordinator_rank;
  const bool is_rank = join.coordinator_rank >= 0 && join.coordinator_rank < world_size_;
  if (is_rank && join.coordinator_rank == call.second.coordinator_rank) return std::nullopt;
  return disagree(call, from, join);
}

void CallRegister::leave(Last& last) {
  if (last.call != nullptr && --last.call->second.callers == 0) calls_.erase(calls_.find(last.call->first));
  last.call = nullptr;
}

// `from` is the first rank that named a different coordinator than the others, or a coordinator
// that is not a rank. The failures name every rank whose coordinator is not a rank, or differs from
// that of the lowest rank.
CallRegister::Disagreement CallRegister::disagree(Calls::value_type& call, int from, const Join& join) {
  Disagreement found;
  for (int rank = 0; rank < world_size_; ++rank) {
    Last& last = last_[static_cast<std::size_t>(rank)];
    if (last.call != &call) continue;
    found.tickets.emplace(rank, last.ticket);
    last.call = nullptr;
  }
  const auto given_by = [&](int rank) { return rank == from ? join.coordinator_rank : call.second.coordinator_rank; };
  const int lowest = found.tickets.begin()->first;
  FailureMap failures;
  for (const auto& [rank, ticket] : found.tickets) {
    const int given = given_by(rank);
    ErrorCode code = ErrorCode::kMismatch;
    std::string why = "but rank " + std::to_string(lowest) + " with " + std::to_string(given_by(lowest));
    if (given < 0 || given >= world_size_) {
      code = ErrorCode::kInvalidArgument;
      why = "which is not a rank of a world of " + std::to_string(world_size_);
    } else if (given == given_by(lowest)) {
      continue;
    }
    failures.emplace(rank,
                     make_failure(rank, Phase::kJoin, FailureKind::kRaised, code, "coordinator",
                                  "rank " + std::to_string(rank) + " called " + describe_call(join) + " with coordinator_rank " +
                                      std::to_string(given) + ", " + why + "; pass the same coordinator_rank on every rank"));
  }
  found.ending = call.second.ending = make_ending(failures, Committed::kNo, {});
  disagreed_.push_back(call.first);
  if (disagreed_.size() > kept_max_) {
    calls_.erase(disagreed_.front());
    disagreed_.pop_front();
  }
  return found;
}

}  // namespace cairn::protocol
