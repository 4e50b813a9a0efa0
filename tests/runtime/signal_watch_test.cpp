// Signals are recorded, and earlier handlers are restored.
#include <cairn/tests/support/plain.hpp>
//
#include <csignal>
#include <optional>

#include <cairn/runtime/observation/signal_watch.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

volatile std::sig_atomic_t handled = 0;
extern "C" void handle_in_test(int) { handled = handled + 1; }

void (*handler_of(int number))(int) {
  struct sigaction now {};
  ::sigaction(number, nullptr, &now);
  return now.sa_handler;
}

}  // namespace

TEST_CASE("invalid and uncatchable signals are refused, without effect") {
  const auto before = handler_of(SIGUSR1);
  for (const int number : {0, -1, NSIG, 1000, SIGKILL, SIGSTOP}) {
    CAPTURE(number);
    CHECK(thrown_by([&] { SignalWatch watch({SIGUSR1, number}); }).code == ErrorCode::kInvalidArgument);
    CHECK((handler_of(SIGUSR1) == before));
  }
}

TEST_CASE("each watch learns of each signal once, and only of those since it began") {
  SignalWatch first({SIGUSR1, SIGUSR2});
  CHECK_FALSE(first.take().has_value());
  std::raise(SIGUSR1);
  std::optional<SignalWatch> second;
  second.emplace(std::vector<int>{SIGUSR1});
  CHECK(first.take()->signal == SIGUSR1);
  CHECK_FALSE(first.take().has_value());
  CHECK_FALSE(second->take().has_value());
  std::raise(SIGUSR1);
  std::raise(SIGUSR1);
  CHECK(second->take()->signal == SIGUSR1);
  CHECK_FALSE(second->take().has_value());
  second.reset();
  CHECK(first.take()->signal == SIGUSR1);
  std::raise(SIGUSR2);
  CHECK(first.take()->signal == SIGUSR2);
}

TEST_CASE("the first of several signals is returned first, the others afterwards") {
  SignalWatch watch({SIGUSR1, SIGUSR2});
  std::raise(SIGUSR2);
  std::raise(SIGUSR1);
  CHECK(watch.take()->signal == SIGUSR2);
  const auto second = watch.take();
  REQUIRE(second.has_value());
  CHECK(second->signal == SIGUSR1);
  CHECK_FALSE(watch.take().has_value());
}

TEST_CASE("the last watch restores the earlier handler unless another was installed") {
  struct sigaction own {
  }, original{};
  own.sa_handler = handle_in_test;
  ::sigaction(SIGUSR2, &own, &original);
  handled = 0;
  {
    SignalWatch first({SIGUSR2});
    { SignalWatch second({SIGUSR2, SIGUSR2}); }
    std::raise(SIGUSR2);
    CHECK(handled == 0);
    CHECK(first.take().has_value());
  }
  std::raise(SIGUSR2);
  CHECK(handled == 1);
  {
    SignalWatch watch({SIGUSR2});
    struct sigaction ignoring {};
    ignoring.sa_handler = SIG_IGN;
    ::sigaction(SIGUSR2, &ignoring, nullptr);
  }
  CHECK((handler_of(SIGUSR2) == SIG_IGN));
  ::sigaction(SIGUSR2, &original, nullptr);
}
