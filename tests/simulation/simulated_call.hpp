// One call of a simulated trainer: the objects that it passes to the rank's runtime, the thread
// that runs its hooks, and the checks of its outcome.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/messages/control.hpp>
#include <cairn/runtime/checkpoints/async_hooks.hpp>
#include <cairn/runtime/observation/progress_hooks.hpp>
#include <cairn/tests/simulation/hooks.hpp>
#include <cairn/tests/simulation/ledger.hpp>
#include <cairn/tests/simulation/trainer_thread.hpp>

namespace cairn::simulation {

struct CallSpec;
class Job;
class SimulatedRank;
class World;

class SimulatedCall final : private HookWatcher {
 public:
  // Call `number` of the job's program, counted from 1; call `ordinal` of its checkpointer.
  SimulatedCall(World& world, Job& job, SimulatedRank& rank, std::uint64_t number, std::string checkpointer, std::uint64_t ordinal);

  void start(RankRuntime& runtime);

  std::uint64_t number() const { return number_; }
  std::uint64_t ticket() const { return ticket_; }
  const std::string& checkpointer() const { return checkpointer_; }
  const CallSpec& spec() const;
  // Returns whether the trainer has not been told the outcome.
  bool runs() const { return !judged_; }

  // An outcome has arrived for this ticket.
  void told(int from, const protocol::Outcome& outcome);
  // Wakes a hook that waits for its save's turn.
  void look_at_turn();
  // Checks the progress shown since the last call of this function.
  void look_at_progress();
  // Another rank has passed on what it read for this one.
  void receive();
  // Runs the hook in progress to its end after the process has died.
  void drain() {
    thread_.drain();
    read_.reset();
  }

 private:
  void fill(Call& call);
  const StateDict& await_turn();

  void hook_begins(Hook hook) override;
  void hook_ends(Hook hook) override;
  void hook_fails(Hook hook, const std::exception_ptr& exception) override;
  void save_begins(const std::string& save_id) override;
  void load_begins(const std::string& save_id) override { loaded_ = save_id; }
  void save_settles(Committed committed) override;
  Future<bool> read_ends(Future<bool> own_read) override;

  // The runtime reports the outcome. The trainer hears of it once its process runs.
  void done(CallResult outcome);
  void end();
  // Returns the rank that sent this outcome, or -1 if no rank did.
  int told_by(const protocol::CallResult& finished) const;
  void judge(const protocol::CallResult& finished, bool heard) const;
  void judge_answer(const protocol::CallResult& finished) const;
  void accuse(const std::string& what) const;

  World& world_;
  Job& job_;
  SimulatedRank& rank_;
  const std::uint64_t number_;
  const std::string checkpointer_;
  const std::uint64_t ordinal_;
  std::uint64_t ticket_ = 0;

  TrainerThread thread_;
  StateDict state_;
  const std::shared_ptr<Tools> tools_;
  const std::shared_ptr<CallProgress> progress_ = std::make_shared<CallProgress>();
  WatchedSavePlanner save_planner_;
  WatchedLoadPlanner load_planner_;
  WatchedWriter writer_;
  WatchedReader reader_;
  CountingSavePlanner counting_save_planner_;
  CountingLoadPlanner counting_load_planner_;
  AsyncWriter async_writer_;
  CountingSavePlanner async_planner_;

  bool waits_for_turn_ = false;
  bool was_stopped_ = false;           // its save before its turn, or its read
  int senders_ = 0;                    // the other ranks that have passed on what they read
  std::optional<Promise<bool>> read_;  // while it waits for other ranks
  std::string loaded_;                 // the save id that `read_metadata` returned
  std::optional<Phase> phase_shown_;
  std::vector<std::pair<int, protocol::Outcome>> outcomes_;  // with the sender
  std::optional<protocol::CallResult> finished_;
  bool judged_ = false;
  Duration began_{0};
};

}  // namespace cairn::simulation
