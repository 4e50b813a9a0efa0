#include <cairn/actors/protocol/events.hpp>

#include <iterator>

#include <cairn/base/enum_names.hpp>

namespace cairn::protocol {

const char* name_of(Hook hook, Operation operation) noexcept {
  const bool save = operation == Operation::kSave;
  if (hook == Hook::kSetUpStorage) return save ? "set_up_storage_writer" : "set_up_storage_reader";
  if (hook == Hook::kMoveData) return save ? "write_data" : "read_data";
  static constexpr const char* kNames[] = {"reset",
                                           "begin",
                                           "read_metadata",
                                           "set_up_planner",
                                           "",
                                           "create_local_plan",
                                           "prepare_local_plan",
                                           "create_global_plan",
                                           "prepare_global_plan",
                                           "finish_plan",
                                           "",
                                           "finish",
                                           "committed",
                                           "abandon",
                                           "release",
                                           "decide"};
  return name_in<Hook::kDecide>(kNames, hook, "unknown hook");
}

Actor actor_of(Hook hook) noexcept {
  const bool is_planners = hook == Hook::kBegin || hook == Hook::kSetUpPlanner || hook == Hook::kCreateLocalPlan ||
                           hook == Hook::kCreateGlobalPlan || hook == Hook::kFinishPlan || hook == Hook::kDecide;
  return is_planners ? Actor::kPlanner : Actor::kStorage;
}

// By the alternatives of Task, in their order.
struct TaskTraits {
  const char* name;
  Hook main_hook;
};
static constexpr TaskTraits kTasks[] = {{"GatherState", Hook::kBegin},
                                        {"CreateLocalPlan", Hook::kCreateLocalPlan},
                                        {"CreateGlobalSavePlan", Hook::kCreateGlobalPlan},
                                        {"CreateGlobalLoadPlan", Hook::kCreateGlobalPlan},
                                        {"Decide", Hook::kDecide},
                                        {"Write", Hook::kMoveData},
                                        {"Read", Hook::kMoveData},
                                        {"Finish", Hook::kFinish},
                                        {"AskCommitted", Hook::kAskCommitted},
                                        {"Abandon", Hook::kAbandon},
                                        {"Release", Hook::kRelease}};
static_assert(std::size(kTasks) == std::variant_size_v<Task>);

const char* name_of(const Task& task) noexcept { return kTasks[task.index()].name; }
Hook main_hook_of(const Task& task) noexcept { return kTasks[task.index()].main_hook; }

const char* name_of(const TaskResult& result) noexcept {
  static constexpr const char* kNames[] = {"StateGathered", "LocalSavePlan", "LocalLoadPlan", "GlobalSavePlans", "GlobalLoadPlans",
                                           "Answer",        "Written",       "ReadDone",      "Published",       "Committed",
                                           "Released",      "Stopped",       "Failure"};
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
  return make_failure(
      rank, phase, FailureKind::kInternal, ErrorCode::kInternal, "supervisor",
      std::string("the ") + to_string(died.actor) + " actor of rank " + std::to_string(rank) + " died: " + died.why);
}

Failure failure_of(const PeerDown& down, Phase phase) {
  return make_failure(down.rank, phase, down.kind, down.code, "link",
                      "lost touch with rank " + std::to_string(down.rank) + ": " + down.why);
}

}  // namespace cairn::protocol
