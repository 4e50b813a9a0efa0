// The thread that runs the hooks of one call, as a fiber of the world. Every hook takes some time
// before it begins.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include <cairn/actors/call.hpp>
#include <cairn/tests/simulation/fiber.hpp>

namespace cairn::simulation {

class SimulatedRank;
class World;

class TrainerThread final : public TrainerExecutor {
 public:
  TrainerThread(World& world, SimulatedRank& rank) : world_(world), rank_(rank) {}

  void post(std::function<void()> task) override;
  // Returns whether no task is waiting or running. A task that has ended and is being destroyed
  // does not count.
  bool is_idle() const { return tasks_.empty() && !runs_; }
  // Continues the task in progress.
  void resume();
  // The process has died: drops the tasks that wait, and runs the one in progress to its end.
  void drain();

 private:
  void start_next();

  World& world_;
  SimulatedRank& rank_;
  std::deque<std::function<void()>> tasks_;
  std::function<void()> task_;
  bool runs_ = false;
  std::unique_ptr<Fiber> fiber_;
};

}  // namespace cairn::simulation
