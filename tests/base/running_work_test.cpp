// The stacks of threads that run hooks and store operations.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include <cairn/base/running_work.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/own_child.hpp>
#include <cairn/tests/support/stacks.hpp>

using namespace cairn;
using namespace cairn::testing;

extern "C" __attribute__((noinline)) void wait_in_a_named_function(Gate* gate) {
  gate->pass();
  asm volatile("");  // so that the call above is no tail call
}

namespace {

const int kCall = 0, kOtherCall = 0;
constexpr std::chrono::minutes kPatience{5};  // with threads that answer, however slowly

bool waits_in_the_function(const ThreadStack& stack) {
  return std::any_of(stack.frames.begin(), stack.frames.end(), [](const auto& frame) {
    return !frame.module.empty() && is_frame_in(wait_in_a_named_function, frame.offset);
  });
}

Work work_of(const void* call, const char* name = "write_data") { return {call, Actor::kStorage, Phase::kWrite, name}; }

// A thread of `call` that waits in `wait_in_a_named_function` until the end.
class WaitingThread {
 public:
  explicit WaitingThread(const void* call) {
    // As Cairn's own threads are started.
    const SignalsBlocked blocked;
    thread_ = std::thread([this, call] {
      const RunningWork hook(work_of(call));
      Work inner = RunningWork::of_this_thread();
      inner.name = "write_at";
      inner.object = "file_0";
      const RunningWork work(inner);
      wait_in_a_named_function(&gate_);
    });
    gate_.wait_until_reached();
  }
  ~WaitingThread() {
    gate_.open();
    thread_.join();
  }

 private:
  Gate gate_;
  std::thread thread_;
};

bool blocks(int number) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, number) == 1;
}

}  // namespace

TEST_CASE("signals: a thread started under the block gets only the signals that it causes") {
  bool of_the_program = false;
  bool of_its_own = true;
  {
    const SignalsBlocked blocked;
    std::thread([&] {
      of_the_program = blocks(SIGTERM) && blocks(SIGINT) && blocks(SIGUSR1) && blocks(SIGCHLD);
      of_its_own = blocks(SIGSEGV) || blocks(SIGBUS) || blocks(SIGFPE) || blocks(SIGABRT) || blocks(SIGPROF);
    }).join();
  }
  CHECK(of_the_program);
  CHECK_FALSE(of_its_own);
  CHECK_FALSE(blocks(SIGTERM));
}

TEST_CASE("stacks: a stack names the function in which a thread waits") {
  if (!takes_stacks()) return;
  const WaitingThread waiting(&kCall), other(&kOtherCall);
  const auto stacks = take_stacks(&kCall, Duration(0), kPatience);
  REQUIRE(stacks.size() == 1);
  CHECK(stacks[0].fault == "");
  CHECK(waits_in_the_function(stacks[0]));
  CHECK(stacks[0].work.name == std::string("write_at"));
  CHECK(stacks[0].object == "file_0");
  CHECK(stacks[0].work.phase == Phase::kWrite);
  CHECK(stacks[0].running > Duration(0));
  CHECK(take_stacks(&kCall, Duration(0)).empty());  // each stack once
}

TEST_CASE("stacks: work that has not run for long has no stack yet") {
  if (!takes_stacks()) return;
  const WaitingThread waiting(&kCall);
  CHECK(take_stacks(&kCall, std::chrono::hours(1)).empty());
  CHECK(take_stacks(&kCall, Duration(0)).size() == 1);
}

TEST_CASE("stacks: a thread that does not answer is reported, and disturbs no later one") {
  if (!takes_stacks()) return;
  Gate gate;
  std::thread deaf([&] {
    const RunningWork work(work_of(&kCall));
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    gate.pass();
    sigemptyset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);  // the signal comes now, late
  });
  gate.wait_until_reached();
  const auto stacks = take_stacks(&kCall, Duration(0));
  gate.open();
  deaf.join();
  REQUIRE(stacks.size() == 1);
  CHECK(stacks[0].frames.empty());
  CHECK(stacks[0].fault.find("the thread did not answer") == 0);
  const WaitingThread waiting(&kOtherCall);
  const auto later = take_stacks(&kOtherCall, Duration(0), kPatience);
  REQUIRE(later.size() == 1);
  CHECK(waits_in_the_function(later[0]));
}

// In a process of its own, because a process installs the signal once.
TEST_CASE("stacks in a child: a signal that the program handles is not taken" * doctest::skip()) {
  for (const int number : {SIGUSR2, SIGRTMAX - 1}) REQUIRE((std::signal(number, [](int) {}) != SIG_ERR));
  sigset_t read_elsewhere;
  sigemptyset(&read_elsewhere);
  sigaddset(&read_elsewhere, SIGRTMAX - 2);
  pthread_sigmask(SIG_BLOCK, &read_elsewhere, nullptr);
  CHECK(install_stack_signal(SIGUSR2) == "the program handles or blocks signal 12");
  CHECK(take_stacks(&kCall, Duration(0)).empty());
  CHECK(install_stack_signal(0) == "");
  struct sigaction now {};
  for (const int number : {SIGUSR2, SIGRTMAX - 1, SIGRTMAX - 2}) {
    ::sigaction(number, nullptr, &now);
    CHECK((now.sa_flags & SA_SIGINFO) == 0);
  }
  ::sigaction(SIGRTMAX - 3, nullptr, &now);
  CHECK((now.sa_flags & SA_SIGINFO) != 0);
  // A handler that the program installs later stays too, and is not called.
  static volatile std::sig_atomic_t calls = 0;
  REQUIRE((std::signal(SIGRTMAX - 3, [](int) { calls = calls + 1; }) != SIG_ERR));
  const WaitingThread waiting(&kCall);
  const auto stacks = take_stacks(&kCall, Duration(0));
  REQUIRE(stacks.size() == 1);
  CHECK(stacks[0].fault.find("the program has installed its own handler") == 0);
  CHECK(calls == 0);
}

TEST_CASE("stacks: a signal that the program handles is not taken") {
  if (!takes_stacks()) return;
  stderr_of_case("stacks in a child: a signal that the program handles is not taken");
}

// The unwinder changes the stack while it throws, so that whoever walks through it may read
// anything. In a process of its own, which could die of that.
TEST_CASE("stacks in a child: a stack that is being unwound is not walked" * doctest::skip()) {
  REQUIRE(install_stack_signal(0) == "");
  std::atomic<bool> ended{false};
  std::atomic<long> thrown{0};
  std::thread throwing([&] {
    while (!ended) {
      const RunningWork work(work_of(&kCall));
      for (int i = 0; i < 100; ++i) {
        try {
          throw 1;
        } catch (int) {
          ++thrown;
        }
      }
    }
  });
  int met = 0, walked_through = 0;
  for (int taken = 0; taken < 300 || met == 0;) {
    const long before = thrown;
    while (thrown < before + taken % 100) {
    }
    for (const ThreadStack& stack : take_stacks(&kCall, Duration(0), kPatience)) {
      ++taken;
      met += stack.fault == "the thread is throwing an exception";
      walked_through += std::any_of(stack.frames.begin(), stack.frames.end(), [](const StackFrame& frame) {
        return frame.module.find("libgcc_s") != std::string_view::npos;
      });
    }
  }
  CHECK(walked_through == 0);
  ended = true;
  throwing.join();
}

TEST_CASE("stacks: a stack that is being unwound is not walked") {
  if (!takes_stacks()) return;
  stderr_of_case("stacks in a child: a stack that is being unwound is not walked");
}
