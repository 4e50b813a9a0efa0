// For tests that open stores of LibTorch's: one to open, and a LeakCheck.
#pragma once

#include <cstdint>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/tests/support/leak_check.hpp>

namespace cairn::testing {

// Served by this process. `multi_tenant`: for all that open one at this port.
inline c10::intrusive_ptr<c10d::TCPStore> hosted_store(int port = 0, bool multi_tenant = false) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.multiTenant = multi_tenant;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// What the first TCPStore leaves to all others, such as the pipes of its event loop, is there before anything is counted.
class StoreLeakCheck {
 private:
  static bool open_first_store() {
    static const bool once = [] {
      hosted_store()->set("key", {1});
      return true;
    }();
    return once;
  }
  const bool warm_ = open_first_store();
  const LeakCheck leaks_;
};

}  // namespace cairn::testing
