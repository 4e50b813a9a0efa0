// Blocks signals on library threads, so that the trainer's signal handlers run only on the
// trainer's threads.
#pragma once

#include <csignal>
#include <initializer_list>
#include <thread>
#include <utility>

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

// Starts a library thread, which debuggers show by `name` of at most 15 characters. Throws
// std::system_error if no thread can be had.
template <class Body>
std::thread start_thread(const char* name, Body body) {
  const SignalsBlocked blocked;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace cairn
