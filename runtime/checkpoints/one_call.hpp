// Lets one call at a time through. Internal.
#pragma once

#include <string>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// Holds `running` while a call runs. Throws kPrecondition with the text `busy` if another call
// holds it. Does not wait, because waiting threads could proceed in different orders on two ranks.
class CAIRN_SCOPED_CAPABILITY OneCall {
 public:
  OneCall(Mutex& running, const std::string& busy) CAIRN_ACQUIRE(running) : running_(running) {
    if (!running_.try_lock()) throw Error(ErrorCode::kPrecondition, busy);
  }
  ~OneCall() CAIRN_RELEASE() { running_.unlock(); }
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;

 private:
  Mutex& running_;
};

}  // namespace cairn
