// An in-memory run behind a store that a test can make fail or block. Include a test framework
// header first.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

namespace cairn::testing {

struct ControlledRun {
  ControlledRun() {
    current() = control;
    static const bool registered = [] {
      register_store("controlled", [](const std::string& url) -> std::shared_ptr<Store> {
        return std::make_shared<ControlledStore>(url, std::shared_ptr<StoreControl>(current()));
      });
      return true;
    }();
    REQUIRE(registered);
  }
  ~ControlledRun() { forget_memory("controlled"); }

  class ControlledStore : public WrappedStore {
   public:
    ControlledStore(const std::string& url, std::shared_ptr<StoreControl> control)
        : WrappedStore(open_store("mem" + url.substr(url.find(':'))), std::move(control)), url_(url) {}
    std::string url() const override { return url_; }

   private:
    const std::string url_;
  };
  static std::weak_ptr<StoreControl>& current() {
    static std::weak_ptr<StoreControl> of_test;
    return of_test;
  }

  const std::shared_ptr<StoreControl> control = std::make_shared<StoreControl>();
  const std::string run = "controlled://controlled/run";
  const std::string memory = "mem://controlled/run";
};

}  // namespace cairn::testing
