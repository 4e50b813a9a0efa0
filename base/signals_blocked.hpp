// Signals belong to the program's own threads: a handler of the trainer's is not to run on one of the library's.
#pragma once

#include <csignal>
#include <initializer_list>

#include <pthread.h>

namespace cairn {

// What is started on this thread while it lives inherits a mask that blocks all signals, except those that a thread causes itself, such
// as SIGSEGV, whose handlers say how a program crashed, and SIGPROF, by which profilers look at every thread.
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
