// The signal masks of threads started under SignalsBlocked.
#include <thread>

#include <cairn/base/signals_blocked.hpp>
#include <cairn/tests/support/plain.hpp>

using namespace cairn;

namespace {

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
