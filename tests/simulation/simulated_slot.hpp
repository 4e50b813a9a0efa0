// One checkpointer name on one simulated rank: the shipping state machines, which handle one call
// at a time, and its hooks, which run one after another. A slot does what the rank supervisor and
// the coordinator actor do around the machines. Calls in flight at the same time use separate
// slots.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/tests/simulation/fiber.hpp>
#include <cairn/tests/simulation/rank_hooks.hpp>

namespace cairn::simulation {

class Job;
class SimulatedRank;
class World;

class SimulatedSlot {
 public:
  SimulatedSlot(World& world, Job& job, SimulatedRank& rank, std::string name);

  // Starts call `number` of the job's program, counted from 1. Reports its progress to the rank.
  void start(std::uint64_t number);
  bool runs(std::uint64_t number) const { return call_ && number_ == number; }
  // For texts.
  std::string state() const;
  // Describes what is left of earlier calls. Empty between two calls.
  std::string leftover() const;
  bool is_idle() const;
  bool is_coordinated_by(int rank) const { return machine_ && machine_->coordinator_rank() == rank; }

  void step_rank(const protocol::Event& event);
  void step_coordinator(const protocol::Event& event);
  void receive(const protocol::Received& received);
  void send(const protocol::Send& message);
  // The coordinator's actor dies, and a new one takes its place.
  void lose_coordinator();
  // Counts in the coverage that the coordinator was lost in its present state; `how` says by which
  // fault.
  void count_coordinator(const char* how) const;

  void forget_hooks() { hooks_.clear(); }
  // Runs the hook in progress to its end after the process has died.
  void drain();
  void resume_hook();
  // Wakes a hook that waits for its save's turn.
  void look_at_turn();

 private:
  struct QueuedHook {
    protocol::RunHook hook;
    std::uint64_t coordinator = 0;  // the coordinator's life that asked for it; 0: the rank's own hook
    std::shared_ptr<RunningCall> call;
    std::uint64_t cause = 0;  // event id in the trace
    std::uint64_t began = 0;  // the same, of the hook's start
    MonotonicTime began_at{};
  };

  protocol::RankMachine& rank_machine();
  protocol::CoordinatorMachine& coordinator();
  void end_call(const protocol::Finished& finished);
  // Returns the rank that sent this outcome, or -1 if no rank did.
  int told_by(const protocol::Finished& finished) const;
  void judge(const protocol::Finished& finished, bool heard) const;
  void judge_answer(const protocol::Finished& finished) const;

  void perform(protocol::Effects effects, bool for_coordinator);
  void show(const protocol::JobProgress& job);
  void start_timer(const protocol::StartTimer& timer);
  void run_for_coordinator(const protocol::RunHook& hook, std::uint64_t life);
  void queue(QueuedHook hook);
  void start_hook();
  void run_body(QueuedHook& queued, protocol::HookDone& done);
  std::uint64_t record_hook(EventKind kind, const QueuedHook& queued, const Failure* failure);
  const StateDict& await_turn(const RunningCall& call);
  void end_hook();
  void let_go();

  World& world_;
  Job& job_;
  SimulatedRank& rank_;
  const std::string name_;

  // Created on first use. The slot named `kCheckpointer` creates both at once.
  std::optional<protocol::RankMachine> machine_;
  std::unique_ptr<protocol::CoordinatorMachine> coordinator_;
  std::uint64_t coordinator_life_ = 1;
  std::map<protocol::Timer, std::uint64_t> timers_;
  std::uint64_t last_timer_ = 0;

  std::shared_ptr<RunningCall> call_;
  std::uint64_t number_ = 0;   // of the running call, or of the last one
  std::uint64_t ordinal_ = 0;  // number of calls made in this slot
  bool holds_on_ = false;      // hooks of a background call may still be queued or running
  std::weak_ptr<RunningCall> last_call_;
  std::deque<QueuedHook> hooks_;
  std::unique_ptr<Fiber> fiber_;
  std::optional<QueuedHook> running_;
  bool waits_for_turn_ = false;
  protocol::HookDone result_;

  // Facts about the running call, for the checks at its end.
  std::vector<std::pair<int, protocol::Outcome>> outcomes_;  // with its sender
  bool own_hook_failed_ = false;
  Duration call_began_{0};
};

}  // namespace cairn::simulation
