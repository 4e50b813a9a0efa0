#include <cairn/tests/simulation/one_fault.hpp>

#include <iterator>

#include <cairn/base/call_phase.hpp>

namespace cairn::simulation {
namespace {

using protocol::Operation;
using State = protocol::CoordinatorMachine::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kFaultyCall = 2;

Phase phase_of_hook(Hook hook, Operation operation) {
  switch (hook) {
    case Hook::kCreateGlobalPlan:
    case Hook::kPrepareGlobalPlan:
      return Phase::kGlobalPlan;
    case Hook::kFinishPlan:
    case Hook::kMoveData:
      return operation == Operation::kSave ? Phase::kWrite : Phase::kRead;
    case Hook::kFinish:
      return Phase::kFinish;
    default:
      return Phase::kLocalPlan;
  }
}

const char* name_of(HookFault fault) {
  static constexpr const char* kNames[] = {"throws", "throws what is no exception", "fails at its end", "is killed", "is slow"};
  return kNames[static_cast<int>(fault) - 1];
}

void fault_in_hook(Dice& dice, OneFault& fault) {
  static constexpr Hook kOfSaves[] = {Hook::kReset,
                                      Hook::kBegin,
                                      Hook::kSetUpPlanner,
                                      Hook::kSetUpStorage,
                                      Hook::kCreateLocalPlan,
                                      Hook::kPrepareLocalPlan,
                                      Hook::kCreateGlobalPlan,
                                      Hook::kPrepareGlobalPlan,
                                      Hook::kFinishPlan,
                                      Hook::kMoveData,
                                      Hook::kMoveData,
                                      Hook::kFinish};
  static constexpr Hook kOfLoads[] = {Hook::kReset,           Hook::kReadMetadata,     Hook::kSetUpPlanner, Hook::kSetUpStorage,
                                      Hook::kCreateLocalPlan, Hook::kCreateGlobalPlan, Hook::kFinishPlan,   Hook::kMoveData};
  static constexpr HookFault kFaults[] = {HookFault::kThrows,      HookFault::kThrows, HookFault::kThrowsStrangely,
                                          HookFault::kFutureFails, HookFault::kKilled, HookFault::kKilled,
                                          HookFault::kSlow};
  const CallSpec& call = fault.job.program[kFaultyCall - 1];
  const Hook hook = call.operation == Operation::kSave ? kOfSaves[dice.below(static_cast<int>(std::size(kOfSaves)))]
                                                       : kOfLoads[dice.below(static_cast<int>(std::size(kOfLoads)))];
  const int rank = is_coordinators(hook) ? call.coordinator : dice.below(fault.job.size);
  const HookFault kind = kFaults[dice.below(static_cast<int>(std::size(kFaults)))];
  fault.job.ranks[static_cast<std::size_t>(rank)].hooks[{kFaultyCall, hook}] = kind;
  fault.ranks = {rank};
  fault.phases = {to_string(phase_of_hook(hook, call.operation))};
  if (hook == Hook::kBegin) fault.phases.insert(to_string(Phase::kJoin));  // as the rank reports it
  fault.is_slow = kind == HookFault::kSlow;
  fault.what =
      std::string(name_of(hook, call.operation == Operation::kLoad)) + " of rank " + std::to_string(rank) + " " + name_of(kind);
}

void trouble(Dice& dice, OneFault& fault) {
  using What = Trouble::What;
  static constexpr What kWhats[] = {What::kKillProcess, What::kKillMachine, What::kFreeze,
                                    What::kBlock,       What::kCancels,     What::kStorageDies};
  static constexpr State kStates[] = {State::kJoining, State::kLocalPlans, State::kGlobalPlan, State::kMoving};
  const int coordinator = fault.job.program[kFaultyCall - 1].coordinator;
  Trouble trouble;
  trouble.what = kWhats[dice.below(static_cast<int>(std::size(kWhats)))];
  trouble.rank = dice.below(fault.job.size);
  trouble.peer = coordinator;
  if (trouble.what == What::kBlock && trouble.rank == coordinator) trouble.rank = (coordinator + 1) % fault.job.size;
  trouble.length = dice.between(seconds(60), seconds(200));
  trouble.when = Trouble::When::kState;
  trouble.state = kStates[dice.below(static_cast<int>(std::size(kStates)))];
  trouble.occurrence = kFaultyCall - 1;
  trouble.time = dice.between(Duration(0), milliseconds(1));
  fault.job.troubles.push_back(trouble);
  fault.ranks = {trouble.rank};
  if (trouble.what == What::kBlock) fault.ranks.insert(coordinator);
  fault.what = std::string(to_string(trouble.what)) + ": rank " + std::to_string(trouble.rank) + ", when the coordinator was " +
               to_string(trouble.state);
}

}  // namespace

OneFault one_fault(Dice& dice, std::uint64_t& last_content) {
  OneFault fault;
  fault.job.size = 2 + dice.below(7);
  fault.job.quiet = false;
  fault.job.lockstep = true;
  fault.job.ranks.resize(static_cast<std::size_t>(fault.job.size));
  CallSpec call;
  call.coordinator = dice.chance(60) ? 0 : dice.below(fault.job.size);
  const int layout = dice.below(2);
  call.version = {++last_content, layout};
  fault.job.program.push_back(call);
  if (dice.chance(25))
    call.operation = Operation::kLoad;
  else
    call.version = {++last_content, layout};
  fault.job.program.push_back(call);
  if (dice.chance(55))
    fault_in_hook(dice, fault);
  else
    trouble(dice, fault);
  return fault;
}

Phase FaultWitness::phase_of(State state) const {
  return cairn::phase_of(state, fault_.job.program.back().operation).value_or(Phase::kJoin);
}

void FaultWitness::befell(const VirtualTime& time, RankState state) {
  if (happened_) return;
  happened_ = time.now();
  state_ = state;
}

void FaultWitness::entered(const VirtualTime& time, int rank, State state) {
  if (rank == fault_.job.program.back().coordinator && state != State::kIdle) states_.emplace_back(time.now(), state);
}

void FaultWitness::reported(const Report& report) { failed_ = failed_ || !report.finished.failures.empty(); }

std::set<std::string> FaultWitness::phases() const {
  if (!fault_.phases.empty()) return fault_.phases;
  std::set<std::string> phases;
  // The rank's own phase: a rank that waits, or that a message has not reached, is behind the
  // coordinator.
  if (const auto own = cairn::phase_of(state_, fault_.job.program.back().operation)) phases.insert(to_string(*own));
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const bool is_over = i + 1 < states_.size() && happened_ && states_[i + 1].first <= *happened_;
    if (!is_over) phases.insert(to_string(phase_of(states_[i].second)));
  }
  return phases;
}

}  // namespace cairn::simulation
