// For tests that open LibTorch stores: a function that opens one, and a leak check.
#pragma once

#include <cstdint>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/tests/support/leak_check.hpp>

namespace cairn::testing {

// Returns a store that this process serves. With `multi_tenant`, all stores that this process opens
// at the port share one server.
inline c10::intrusive_ptr<c10d::TCPStore> hosted_store(int port = 0, bool multi_tenant = false) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.multiTenant = multi_tenant;
  return open_tcp_store("127.0.0.1", options);
}

// Opens a first TCPStore before it counts, because the first one leaves shared resources open, such
// as the pipes of its event loop.
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
