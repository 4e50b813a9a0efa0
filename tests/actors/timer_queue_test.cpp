// The deadlines of an actor whose process may stand still.
#include <cairn/tests/support/torch.hpp>

#include <vector>

#include <cairn/actors/restart_budget.hpp>
#include <cairn/actors/timer_queue.hpp>

namespace cairn::test {
namespace {

using std::chrono::seconds;

constexpr seconds kStall{5};

TEST_CASE("restarts are limited within ten minutes, and the limit refills") {
  RestartBudget budget;
  const MonotonicTime start{};
  for (int restart = 0; restart < 8; ++restart) CHECK(budget.take(start + seconds(restart), 8));
  CHECK_FALSE(budget.take(start + kRestartsWithin - seconds(1), 8));
  CHECK(budget.take(start + kRestartsWithin, 8));
  CHECK_FALSE(budget.take(start + kRestartsWithin, 8));
  budget.refill();
  CHECK(budget.take(start + kRestartsWithin, 8));
}

// Stands for an actor. Its clock moves only when the test says so.
class Sleeper {
 public:
  const Sleeper& clock() const { return *this; }
  TimerQueue::Time now() const { return now_; }
  void delayed_send(Sleeper*, Duration after, WakeUp) { wake_up_ = now_ + after; }

  void start(protocol::Timer timer, Duration after) {
    timers_.start({"main", timer}, now_, after);
    timers_.arm(this);
  }
  // Sleeps until the wake-up, and `longer`. Returns the timers that are due.
  std::vector<protocol::Timer> sleep(Duration longer = Duration(0)) {
    stand_still(longer);
    return wake_up();
  }
  // Sleeps as above, but handles no wake-up: other messages came before it.
  void stand_still(Duration longer) { now_ = wake_up_ + longer; }
  std::vector<protocol::Timer> wake_up() {
    std::vector<protocol::Timer> due;
    for (const auto& [checkpointer, timer] : timers_.take_due(now_)) due.push_back(timer);
    timers_.arm(this, true);
    return due;
  }
  Duration slept() const { return now_.time_since_epoch(); }

 private:
  TimerQueue timers_{kStall};
  TimerQueue::Time now_{};
  TimerQueue::Time wake_up_{};
};

using Due = std::vector<protocol::Timer>;

TEST_CASE("a deadline passes if its process wakes up a little late") {
  Sleeper sleeper;
  sleeper.start(protocol::Timer::kPhase, seconds(60));
  CHECK((sleeper.sleep(kStall) == Due{protocol::Timer::kPhase}));
}

TEST_CASE("the time in which a process stood still does not count for its deadlines") {
  Sleeper sleeper;
  sleeper.start(protocol::Timer::kPhase, seconds(60));
  sleeper.start(protocol::Timer::kWaiting, seconds(10));
  CHECK(sleeper.sleep(seconds(3600)).empty());
  CHECK((sleeper.sleep() == Due{protocol::Timer::kWaiting}));
  CHECK(sleeper.slept() == seconds(10 + 3600) + kStall);
  CHECK((sleeper.sleep() == Due{protocol::Timer::kPhase}));
  CHECK(sleeper.slept() == seconds(60 + 3600));
}

TEST_CASE("a deadline that passed during a standstill waits once for arrived messages") {
  Sleeper sleeper;
  sleeper.start(protocol::Timer::kPhase, seconds(60));
  CHECK(sleeper.sleep(seconds(3600)).empty());
  // A process that is always late does not wait forever.
  CHECK((sleeper.sleep(seconds(3600)) == Due{protocol::Timer::kPhase}));
}

TEST_CASE("a standstill does not lengthen a timer that is started after it") {
  Sleeper sleeper;
  sleeper.start(protocol::Timer::kPhase, seconds(60));
  sleeper.stand_still(seconds(3600));
  sleeper.start(protocol::Timer::kWaiting, seconds(10));
  CHECK(sleeper.wake_up().empty());
  CHECK((sleeper.sleep() == Due{protocol::Timer::kPhase}));
  CHECK((sleeper.sleep() == Due{protocol::Timer::kWaiting}));
  CHECK(sleeper.slept() == seconds(60 + 3600 + 10));
}

TEST_CASE("every deadline that passed during a standstill waits for arrived messages") {
  Sleeper sleeper;
  sleeper.start(protocol::Timer::kWaiting, seconds(60));
  sleeper.start(protocol::Timer::kPhase, seconds(61));
  CHECK(sleeper.sleep(seconds(3600)).empty());
  CHECK(sleeper.sleep().size() == 2);
  CHECK(sleeper.slept() == seconds(60 + 3600) + kStall);
}

TEST_CASE("the deadline that a caller has set passes while its process stands still") {
  Sleeper sleeper;
  sleeper.start(protocol::Timer::kCall, seconds(60));
  sleeper.start(protocol::Timer::kPhase, seconds(30));
  CHECK((sleeper.sleep(seconds(3600)) == Due{protocol::Timer::kCall}));
}

}  // namespace
}  // namespace cairn::test
