// LeakCheck for tests that open stores of LibTorch's.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/tests/support/leak_check.hpp>

namespace cairn::testing {

// What the first TCPStore leaves to all others, such as the pipes of its event loop, is there before anything is counted.
class StoreLeakCheck {
 private:
  static bool open_first_store() {
    static const bool once = [] {
      c10d::TCPStoreOptions options;
      options.port = 0;
      options.isServer = true;
      options.waitWorkers = false;
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)->set("key", {1});
      return true;
    }();
    return once;
  }
  const bool warm_ = open_first_store();
  const LeakCheck leaks_;
};

}  // namespace cairn::testing
