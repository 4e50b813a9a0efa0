#include <cairn/actors/protocol/events.hpp>

#include <iterator>

namespace cairn::protocol {

const char* name_of(Hook hook, Operation operation) noexcept {
  const bool save = operation == Operation::kSave;
  switch (hook) {
    case Hook::kReset:
      return "reset";
    case Hook::kBegin:
      return "begin";
    case Hook::kReadMetadata:
      return "read_metadata";
    case Hook::kSetUpPlanner:
      return "set_up_planner";
    case Hook::kSetUpStorage:
      return save ? "set_up_storage_writer" : "set_up_storage_reader";
    case Hook::kCreateLocalPlan:
      return "create_local_plan";
    case Hook::kPrepareLocalPlan:
      return "prepare_local_plan";
    case Hook::kCreateGlobalPlan:
      return "create_global_plan";
    case Hook::kPrepareGlobalPlan:
      return "prepare_global_plan";
    case Hook::kFinishPlan:
      return "finish_plan";
    case Hook::kMoveData:
      return save ? "write_data" : "read_data";
    case Hook::kFinish:
      return "finish";
    case Hook::kAskCommitted:
      return "committed";
    case Hook::kAbandon:
      return "abandon";
    case Hook::kRelease:
      return "release";
    case Hook::kDecide:
      return "decide";
  }
  return "unknown hook";
}

Actor actor_of(Hook hook) noexcept {
  switch (hook) {
    case Hook::kBegin:
    case Hook::kSetUpPlanner:
    case Hook::kCreateLocalPlan:
    case Hook::kCreateGlobalPlan:
    case Hook::kFinishPlan:
    case Hook::kDecide:
      return Actor::kPlanner;
    default:
      return Actor::kStorage;
  }
}

const char* name_of(const Task& task) noexcept {
  return std::visit([](const auto& it) { return it.kName; }, task);
}

Hook main_hook_of(const Task& task) noexcept {
  return std::visit([](const auto& it) { return it.kMainHook; }, task);
}

const char* name_of(const TaskResult& result) noexcept {
  static constexpr const char* kNames[] = {"StateGathered", "LocalSavePlan", "LocalLoadPlan", "GlobalSavePlans", "GlobalLoadPlans",
                                           "Answer",        "Written",       "ReadDone",        "Published",
                                           "Committed",     "Released",      "Stopped",         "Failure"};
  static_assert(std::size(kNames) == std::variant_size_v<TaskResult>);
  return kNames[result.index()];
}

std::string in_seconds(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

Failure make_failure(int rank, Phase phase, FailureKind kind, ErrorCode code, const char* actor, const std::string& what) {
  Failure failure;
  failure.rank = rank;
  failure.phase = phase;
  failure.kind = kind;
  failure.code = code;
  failure.what = what.substr(0, kFailureTextMax);
  failure.actor = actor;
  return failure;
}

Failure failure_of(const ActorDied& died, int rank, Phase phase) {
  return make_failure(rank, phase, FailureKind::kInternal, ErrorCode::kInternal, "supervisor",
                      std::string("the ") + to_string(died.actor) + " actor of rank " + std::to_string(rank) + " died: " + died.why);
}

Failure failure_of(const PeerDown& down, Phase phase) {
  return make_failure(down.rank, phase, down.kind, down.code, "link",
                      "lost touch with rank " + std::to_string(down.rank) + ": " + down.why);
}

}  // namespace cairn::protocol
