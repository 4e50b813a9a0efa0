// A stack of its own for code that has to stop in the middle and go on later: one hook of one simulated rank. All of a world
// runs in one thread; what runs next is the scheduler's choice alone.
#pragma once

#include <functional>
#include <memory>

namespace cairn::simulation {

class Fiber {
 public:
  // `body` must not throw, and must have ended before the fiber goes.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body up to its next `suspend` or its end. Not from within a fiber.
  void resume();
  bool ended() const;

  // The fiber that runs, nullptr outside of all.
  static Fiber* current();
  // Back to whoever resumed the running fiber.
  static void suspend();

 private:
  struct State;
  static void enter();
  std::unique_ptr<State> state_;
};

}  // namespace cairn::simulation
