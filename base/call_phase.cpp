#include <cairn/base/call_phase.hpp>

#include <cstddef>

namespace cairn {
namespace {

// `phases` lists those of a save, in the order of the states. A load reads where a save writes.
template <auto kLast, std::size_t kCount>
std::optional<Phase> phase_in(const std::optional<Phase> (&phases)[kCount], decltype(kLast) state, Operation operation) noexcept {
  static_assert(kCount == static_cast<std::size_t>(kLast), "each state needs an entry");
  const std::size_t index = static_cast<std::size_t>(state) - 1;
  const std::optional<Phase> phase = index < kCount ? phases[index] : std::nullopt;
  return phase == Phase::kWrite && operation == Operation::kLoad ? Phase::kRead : phase;
}

}  // namespace

std::optional<Phase> phase_of(RankState state, Operation operation) noexcept {
  static constexpr std::optional<Phase> kPhases[] = {std::nullopt,  Phase::kJoin,  Phase::kLocalPlan, Phase::kLocalPlan,
                                                     Phase::kWrite, Phase::kWrite, std::nullopt};
  return phase_in<RankState::kEnding>(kPhases, state, operation);
}

std::optional<Phase> phase_of(CoordinatorState state, Operation operation) noexcept {
  static constexpr std::optional<Phase> kPhases[] = {std::nullopt,  Phase::kJoin,   Phase::kLocalPlan, Phase::kGlobalPlan,
                                                     Phase::kWrite, Phase::kFinish, Phase::kFinish,    Phase::kGlobalPlan};
  return phase_in<CoordinatorState::kDeciding>(kPhases, state, operation);
}

bool is_waiting(RankState state) noexcept { return state == RankState::kPlanned || state == RankState::kReported; }

}  // namespace cairn
