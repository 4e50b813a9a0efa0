// Keeps SIGPIPE from the program while libcurl runs.
#pragma once

#include <csignal>
#include <ctime>

#include <pthread.h>

namespace cairn {

// OpenSSL may write to a connection that the server has closed, which raises SIGPIPE. libcurl's own
// guard changes the handler of the whole process, so it is off. Instead, this object blocks the
// signal on its thread while it exists.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec at_once{0, 0};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  bool was_pending_ = false;
  sigset_t pipe_;
  sigset_t before_;
};

}  // namespace cairn
