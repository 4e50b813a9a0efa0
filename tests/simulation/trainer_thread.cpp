#include <cairn/tests/simulation/trainer_thread.hpp>

#include <chrono>
#include <utility>

#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {

void TrainerThread::post(std::function<void()> task) {
  if (!rank_.alive()) return;
  tasks_.push_back(std::move(task));
  start_next();
}

void TrainerThread::start_next() {
  if (fiber_ || tasks_.empty() || !rank_.alive()) return;
  task_ = std::move(tasks_.front());
  tasks_.pop_front();
  runs_ = true;
  fiber_ = std::make_unique<Fiber>([this] {
    rank_.pause(world_.dice.between(std::chrono::microseconds(10), std::chrono::milliseconds(2)));
    if (rank_.alive()) task_();
    runs_ = false;
    task_ = nullptr;
  });
  world_.time.after(Duration(0), [this] { rank_.when_awake([this] { resume(); }); });
}

void TrainerThread::resume() {
  if (!fiber_) return;
  rank_.resume(*this, *fiber_);
  if (!fiber_->ended()) return;
  fiber_.reset();
  start_next();
}

void TrainerThread::drain() {
  std::exchange(tasks_, {}).clear();
  while (fiber_) resume();
}

}  // namespace cairn::simulation
