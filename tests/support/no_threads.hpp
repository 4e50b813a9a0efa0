// Prevents this process from starting threads.
#pragma once

#include <pthread.h>

#include <cstddef>

#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

// Gives new threads a stack that is larger than the address space, until it is destroyed. Starting
// one then fails as at the limit of threads.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    REQUIRE(::pthread_getattr_default_np(&attributes) == 0);
    REQUIRE(::pthread_attr_getstacksize(&attributes, &before_) == 0);
    ::pthread_attr_destroy(&attributes);
    set_stack(std::size_t{1} << 60);
  }
  ~NoThreads() { set_stack(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void set_stack(std::size_t bytes) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, bytes);
    CHECK(::pthread_setattr_default_np(&attributes) == 0);
    ::pthread_attr_destroy(&attributes);
  }
  std::size_t before_ = 0;
};

}  // namespace cairn::testing
