// Stores that count what is read from data files.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <cairn/storage/stores/store_decorator.hpp>

namespace cairn::testing {

// The reads of data files through all counted stores of this process.
struct Reads {
  std::atomic<std::uint64_t> bytes{0};
  std::function<void(const DecoratedOperation&)> before;  // may throw
};
inline Reads& reads() {
  static Reads all;
  return all;
}

class CountedStore final : public StoreDecorator {
 public:
  using StoreDecorator::StoreDecorator;
  // As a directory of a network file system: `auto` lets ranks pass on what they read.
  bool is_shared() const override { return true; }

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    if (std::string_view(operation.name) == "read" && operation.object.find(".distcp") != std::string_view::npos) {
      if (reads().before) reads().before(operation);
      reads().bytes += operation.bytes;
    }
    act();
  }
};

// Returns the URL under which the store at `place`, a path or URL, is counted.
inline std::string counted(const std::string& place) {
  static const bool registered = [] {
    register_store("counted", [](const std::string& url) { return std::make_shared<CountedStore>(open_store(url.substr(10))); });
    return true;
  }();
  (void)registered;
  return "counted://" + place;
}

}  // namespace cairn::testing
