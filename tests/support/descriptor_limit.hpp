// Changes the limit on this process's open descriptors for one test.
#pragma once

#include <sys/resource.h>

#include <algorithm>

#include <cairn/tests/support/plain.hpp>

namespace cairn::testing {

// Sets the soft limit, capped at the hard limit, and restores the old one when destroyed.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t count) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = std::min(count, before_.rlim_max);
    enough_ = now.rlim_cur == count;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  bool enough() const { return enough_; }

 private:
  rlimit before_{};
  bool enough_ = false;
};

}  // namespace cairn::testing
