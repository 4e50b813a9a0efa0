// A separate stack for code that must pause and resume: one hook of one simulated rank. A world
// runs in a single thread, and its scheduler alone decides what runs next.
#pragma once

#include <functional>
#include <memory>

namespace cairn::simulation {

class Fiber {
 public:
  // `body` must not throw, and must have ended before the fiber is destroyed.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body up to its next `suspend` or its end. Must not be called from within a fiber.
  void resume();
  bool ended() const;

  // Returns the running fiber, or nullptr outside all fibers.
  static Fiber* current();
  // Returns control to the caller of `resume`.
  static void suspend();

 private:
  struct State;
  static void enter();
  std::unique_ptr<State> state_;
};

}  // namespace cairn::simulation
