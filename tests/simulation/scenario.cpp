#include <cairn/tests/simulation/scenario.hpp>

#include <algorithm>
#include <iterator>

namespace cairn::simulation {
namespace {

using protocol::Operation;
using State = protocol::CoordinatorMachine::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kPlaces[] = {"/runs/run/step", "/runs/run/other"};

// Small worlds are quick and find most bugs. Large worlds are needed occasionally.
int world_size(Dice& dice) {
  const int kind = dice.below(20);
  if (kind == 0) return 1;
  if (kind < 17) return 2 + dice.below(4);
  return 6 + dice.below(11);
}

std::vector<CallSpec> program(Dice& dice, int size, std::uint64_t& last_content) {
  std::vector<CallSpec> calls;
  const int count = 2 + dice.below(3);
  int layout = dice.below(2);
  for (int i = 0; i < count; ++i) {
    CallSpec call;
    call.place = kPlaces[dice.chance(15) ? 1 : 0];
    const bool was_saved = std::any_of(calls.begin(), calls.end(), [&](const CallSpec& before) {
      return before.operation == Operation::kSave && before.place == call.place;
    });
    if (was_saved && dice.chance(25)) call.operation = Operation::kLoad;
    call.coordinator = dice.chance(60) ? 0 : dice.below(size);
    if (dice.chance(15)) layout = 1 - layout;
    call.version = {++last_content, layout};
    calls.push_back(std::move(call));
  }
  return calls;
}

Duration short_or_long(Dice& dice) {
  switch (dice.below(4)) {
    case 0:
      return dice.between(milliseconds(1), milliseconds(900));  // below the heartbeat timeout
    case 1:
      return dice.between(seconds(1), seconds(3));
    case 2:
      return dice.between(seconds(2), seconds(25));
    default:
      return dice.between(seconds(20), seconds(120));
  }
}

Trouble trouble_of(Dice& dice, int size, std::size_t calls) {
  using What = Trouble::What;
  static constexpr What kWhats[] = {
      What::kKillProcess, What::kKillMachine, What::kKillMachine,     What::kFreeze,    What::kFreeze,       What::kFreeze,
      What::kReset,       What::kBlock,       What::kBlock,           What::kPartition, What::kPlannerDies,  What::kStorageDies,
      What::kShutDown,    What::kReset,       What::kCoordinatorDies, What::kPowerLoss, What::kStopsCalling, What::kPowerLoss};
  static constexpr State kStates[] = {State::kJoining,   State::kLocalPlans, State::kGlobalPlan, State::kMoving,
                                      State::kFinishing, State::kIdle,       State::kSettling};
  Trouble trouble;
  trouble.what = kWhats[dice.below(static_cast<int>(std::size(kWhats)))];
  trouble.rank = dice.chance(50) ? -1 : dice.below(size);
  trouble.peer = dice.below(size);
  trouble.length = short_or_long(dice);
  switch (dice.below(3)) {
    case 0:
      trouble.when = Trouble::When::kTime;
      trouble.time = dice.between(Duration(0), milliseconds(80) * static_cast<int>(calls));
      break;
    case 1:
      trouble.when = Trouble::When::kOperation;
      trouble.operation = dice.below(static_cast<std::uint64_t>(size) * 10 * calls + 20 * calls);
      break;
    default:
      trouble.when = Trouble::When::kState;
      trouble.state = kStates[dice.below(static_cast<int>(std::size(kStates)))];
      trouble.occurrence = dice.below(static_cast<std::uint64_t>(calls));
      trouble.time = dice.between(Duration(0), milliseconds(trouble.state == State::kFinishing ? 8 : 4));
      break;
  }
  return trouble;
}

void plan_hook_faults(Dice& dice, JobSpec& job) {
  static constexpr Hook kHooks[] = {Hook::kReset,
                                    Hook::kBegin,
                                    Hook::kReadMetadata,
                                    Hook::kSetUpPlanner,
                                    Hook::kSetUpStorage,
                                    Hook::kCreateLocalPlan,
                                    Hook::kPrepareLocalPlan,
                                    Hook::kCreateGlobalPlan,
                                    Hook::kPrepareGlobalPlan,
                                    Hook::kFinishPlan,
                                    Hook::kMoveData,
                                    Hook::kFinish,
                                    Hook::kMoveData,
                                    Hook::kFinish};
  static constexpr HookFault kFaults[] = {
      HookFault::kThrows, HookFault::kThrows, HookFault::kFutureFails, HookFault::kThrowsStrangely,
      HookFault::kKilled, HookFault::kSlow,   HookFault::kSlow};
  const std::uint64_t call = 1 + dice.below(job.program.size());
  Hook hook = kHooks[dice.below(static_cast<int>(std::size(kHooks)))];
  int rank = dice.below(job.size);
  if (is_coordinators(hook)) rank = job.program[call - 1].coordinator;
  job.ranks[static_cast<std::size_t>(rank)].hooks[{call, hook}] = kFaults[dice.below(static_cast<int>(std::size(kFaults)))];
}

void plan_disk_troubles(Dice& dice, JobSpec& job) {
  RankTroubles& troubles = job.ranks[static_cast<std::size_t>(dice.below(job.size))];
  switch (dice.below(3)) {
    case 0:
      troubles.disk_fails = 1 + dice.below(8);
      break;
    case 1:
      troubles.disk_lies = 1 + dice.below(8);
      break;
    default:
      troubles.disk_slow = 1 + dice.below(4);
      break;
  }
}

}  // namespace

JobSpec troubled_job(Dice& dice, std::uint64_t& last_content, int size) {
  JobSpec job;
  job.size = size != 0 ? size : world_size(dice);
  job.program = program(dice, job.size, last_content);
  job.ranks.resize(static_cast<std::size_t>(job.size));
  job.zombies = dice.chance(30);
  job.lockstep = dice.chance(70);
  const int troubles = dice.chance(10) ? 0 : 1 + dice.below(3);
  for (int i = 0; i < troubles; ++i) {
    job.quiet = false;
    const int kind = dice.below(100);
    if (kind < 60) {
      job.troubles.push_back(trouble_of(dice, job.size, job.program.size()));
    } else if (kind < 85) {
      plan_hook_faults(dice, job);
      if (dice.chance(30)) plan_hook_faults(dice, job);
    } else {
      plan_disk_troubles(dice, job);
    }
  }
  return job;
}

void plan_rare_troubles(Dice& dice, JobSpec& job) {
  using What = Trouble::What;
  const std::uint64_t call = 1 + dice.below(job.program.size());
  if (job.size == 1 || !dice.chance(20)) return;
  const CallSpec& spec = job.program[call - 1];
  const bool save = spec.operation == Operation::kSave;
  const int rank = dice.below(job.size);
  const int other = (rank + 1 + dice.below(job.size - 1)) % job.size;
  const auto troubles_of = [&](int index) -> RankTroubles& { return job.ranks[static_cast<std::size_t>(index)]; };
  Trouble trouble;
  trouble.what = dice.chance(50) ? What::kKillMachine : What::kFreeze;
  trouble.length = short_or_long(dice);
  trouble.peer = rank;
  trouble.when = Trouble::When::kState;
  trouble.time = dice.between(Duration(0), milliseconds(1));
  trouble.occurrence = call - 1;
  job.quiet = false;
  switch (dice.below(5)) {
    case 0:  // one rank's value differs from the others'
      if (save) troubles_of(rank).differing.insert(call);
      return;
    case 1:  // one rank fails, and another is so slow that it is told to stop
      troubles_of(rank).hooks[{call, Hook::kMoveData}] = HookFault::kThrows;
      troubles_of(other).hooks[{call, Hook::kFinishPlan}] = HookFault::kSlow;
      return;
    case 2:  // the coordinator is lost while it settles the outcome of a failed publication
      if (!save) return;
      troubles_of(spec.coordinator).hooks[{call, Hook::kFinish}] = HookFault::kThrows;
      trouble.state = State::kSettling;
      trouble.occurrence = 0;
      break;
    case 3:  // the coordinator is lost while it plans
      trouble.state = State::kGlobalPlan;
      break;
    default:  // a connection reset keeps a rank from getting a plan that was sent
      trouble.what = What::kReset;
      trouble.state = State::kMoving;
      break;
  }
  job.troubles.push_back(trouble);
}

void plan_cancellations(Dice& dice, JobSpec& job) {
  static constexpr State kStates[] = {State::kJoining, State::kLocalPlans, State::kGlobalPlan, State::kMoving, State::kFinishing};
  if (!dice.chance(20)) return;
  job.quiet = false;
  const int count = 1 + dice.below(2);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t call = 1 + dice.below(job.program.size());
    const int rank = dice.below(job.size);
    if (dice.chance(30)) {
      job.ranks[static_cast<std::size_t>(rank)].deadlines[call] = dice.between(Duration(0), milliseconds(100));
      continue;
    }
    Trouble trouble;
    trouble.what = Trouble::What::kCancels;
    trouble.rank = rank;
    trouble.when = Trouble::When::kState;
    trouble.state = kStates[dice.below(static_cast<int>(std::size(kStates)))];
    trouble.occurrence = call - 1;
    trouble.time = dice.between(Duration(0), milliseconds(4));
    job.troubles.push_back(trouble);
  }
}

void plan_background_saves(Dice& dice, JobSpec& job, std::uint64_t& last_content) {
  if (!dice.chance(20)) return;
  const auto more = 1 + dice.below(std::uint64_t{3});
  for (std::uint64_t i = 0; i < more; ++i) {
    CallSpec call;
    call.place = kPlaces[dice.chance(15) ? 1 : 0];
    call.coordinator = dice.chance(60) ? 0 : dice.below(job.size);
    call.version = {++last_content, job.program.back().version.layout};
    job.program.push_back(call);
  }
  for (CallSpec& call : job.program) {
    if (call.operation != Operation::kSave) continue;
    call.background = dice.chance(85);
    call.replaces = call.background && dice.chance(60);
  }
  job.own_tools = dice.chance(30);
  if (dice.chance(40)) {  // later saves have time to queue up or to be replaced
    job.quiet = false;
    auto& troubles = job.ranks[static_cast<std::size_t>(dice.below(job.size))];
    troubles.hooks[{1 + dice.below(job.program.size()), dice.chance(50) ? Hook::kMoveData : Hook::kSetUpStorage}] =
        HookFault::kSlow;
  }
  if (!dice.chance(40)) return;
  job.quiet = false;
  Trouble trouble;
  trouble.what = Trouble::What::kCancels;
  trouble.rank = dice.below(job.size);
  trouble.oldest = dice.chance(50);
  trouble.time = dice.between(Duration(0), milliseconds(40) * static_cast<int>(job.program.size()));
  job.troubles.push_back(trouble);
}

void plan_agreements(Dice& dice, JobSpec& job) {
  using What = Trouble::What;
  static constexpr What kWhats[] = {What::kKillProcess, What::kKillMachine,     What::kFreeze,  What::kReset,
                                    What::kBlock,       What::kCoordinatorDies, What::kCancels, What::kPlannerDies};
  static constexpr HookFault kFaults[] = {HookFault::kThrows, HookFault::kKilled, HookFault::kSlow};
  if (!dice.chance(20)) return;
  CallSpec call;
  call.operation = Operation::kAgree;
  call.coordinator = dice.chance(60) ? 0 : dice.below(job.size);
  job.program.insert(job.program.end(), 1 + dice.below(std::uint64_t{2}), call);
  if (dice.chance(20)) {
    job.quiet = false;
    auto& troubles = job.ranks[static_cast<std::size_t>(call.coordinator)];
    troubles.hooks[{job.program.size(), Hook::kDecide}] = kFaults[dice.below(static_cast<int>(std::size(kFaults)))];
  }
  if (!dice.chance(60)) return;
  job.quiet = false;
  Trouble trouble;
  trouble.what = kWhats[dice.below(static_cast<int>(std::size(kWhats)))];
  trouble.rank = dice.chance(50) ? -1 : dice.below(job.size);
  trouble.peer = dice.below(job.size);
  trouble.length = short_or_long(dice);
  trouble.when = Trouble::When::kState;
  trouble.state = dice.chance(60) ? State::kDeciding : State::kJoining;
  trouble.occurrence = trouble.state == State::kJoining ? job.program.size() - 1 : 0;
  trouble.time = dice.between(Duration(0), milliseconds(4));
  job.troubles.push_back(trouble);
}

void plan_unsendable_text(Dice& dice, JobSpec& job) {
  if (job.size == 1 || !dice.chance(5)) return;
  CallSpec call;
  call.operation = Operation::kAgree;
  call.coordinator = dice.below(job.size);
  job.program.push_back(call);
  job.ranks[static_cast<std::size_t>(dice.below(job.size))].unsendable.insert(job.program.size());
  job.program.push_back(call);
  job.quiet = false;
}

JobSpec quiet_job(Dice& dice, std::uint64_t& last_content, int size, const Ledger& ledger) {
  JobSpec job;
  job.size = size;
  std::set<std::string> places = ledger.places();
  if (places.empty()) places.insert(CallSpec{}.place);
  for (const std::string& place : places) {
    CallSpec call;
    call.place = place;
    call.coordinator = dice.below(size);
    call.operation = Operation::kLoad;
    if (ledger.current(place)) job.program.push_back(call);
    call.operation = Operation::kSave;
    for (int i = 0; i < 2; ++i) {
      call.version = {++last_content, dice.below(2)};
      job.program.push_back(call);
    }
    call.operation = Operation::kLoad;
    job.program.push_back(call);
  }
  return job;
}

}  // namespace cairn::simulation
