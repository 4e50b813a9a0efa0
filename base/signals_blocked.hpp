// Blocks signals on library threads, so that the trainer's signal handlers run only on the
// trainer's threads.
#pragma once

#include <csignal>
#include <initializer_list>

#include <pthread.h>

namespace cairn {

// While a SignalsBlocked exists, this thread and the threads that it starts block most signals.
// Signals that a thread causes itself, such as SIGSEGV, are left alone so that crash handlers run.
// SIGPROF is left alone so that profilers can sample every thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) sigdelset(&blocked, number);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace cairn
