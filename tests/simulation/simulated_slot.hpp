// One name by which the ranks of a job know a checkpointer, on one simulated rank: the shipping state machines, one call at a time,
// and its hooks, which run one after the other. It does what the rank supervisor and the coordinator actor do around the machines.
// Calls that are in flight together are in slots of their own.
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
#include <cairn/actors/recording/recorded.hpp>
#include <cairn/tests/simulation/fiber.hpp>
#include <cairn/tests/simulation/rank_hooks.hpp>

namespace cairn::simulation {

class Job;
class SimulatedRank;
class World;

class SimulatedSlot {
 public:
  SimulatedSlot(World& world, Job& job, SimulatedRank& rank, std::string name);

  // Starts the call of this number, counted from 1, of the job's program. The rank hears of its course.
  void start(std::uint64_t number);
  bool runs(std::uint64_t number) const { return call_ && number_ == number; }
  // For texts.
  std::string state() const;
  // Between two saves or loads nothing of them is left; otherwise says what is.
  std::string leftover() const;
  bool is_idle() const;
  bool is_coordinated_by(int rank) const { return machine_ && machine_->machine().coordinator_rank() == rank; }

  void step_rank(const protocol::Event& event);
  void step_coordinator(const protocol::Event& event);
  void receive(const protocol::Received& received);
  void send(const protocol::Send& message);
  // The coordinator's actor dies, and another one takes its place.
  void lose_coordinator();
  // That something befalls the rank in the middle of what it coordinates.
  void count_coordinator(const char* how) const;

  void forget_hooks() { hooks_.clear(); }
  // What the process has begun ends somehow once it is dead.
  void drain();
  void resume_hook();
  // For a hook that waits until it is its save's turn.
  void look_at_turn();

 private:
  struct QueuedHook {
    protocol::RunHook hook;
    std::uint64_t coordinator = 0;  // life of the coordinator that asked, 0: the rank's own
    std::shared_ptr<RunningCall> call;
    std::uint64_t cause = 0;  // in the trace
    std::uint64_t began = 0;  // too
    MonotonicTime began_at{};
  };

  Recorded<protocol::RankMachine>& rank_machine();
  Recorded<protocol::CoordinatorMachine>& coordinator();
  void end_call(const protocol::Finished& finished);
  // Who told it so, -1 if nobody did.
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

  // As long as nobody has asked for them, there are none.
  std::optional<Recorded<protocol::RankMachine>> machine_;
  std::unique_ptr<Recorded<protocol::CoordinatorMachine>> coordinator_;
  std::uint64_t coordinator_life_ = 1;
  std::map<protocol::Timer, std::uint64_t> timers_;
  std::uint64_t last_timer_ = 0;

  std::shared_ptr<RunningCall> call_;
  std::uint64_t number_ = 0;   // of the call that runs, or ran last
  std::uint64_t ordinal_ = 0;  // calls of this slot
  bool holds_on_ = false;      // hooks of a call in the background may be left
  std::weak_ptr<RunningCall> last_call_;
  std::deque<QueuedHook> hooks_;
  std::unique_ptr<Fiber> fiber_;
  std::optional<QueuedHook> running_;
  bool waits_for_turn_ = false;
  protocol::HookDone result_;

  // Of the running call, for the judgement at its end.
  std::vector<std::pair<int, protocol::Outcome>> outcomes_;  // and who sent it
  bool own_hook_failed_ = false;
  Duration call_began_{0};
};

}  // namespace cairn::simulation
