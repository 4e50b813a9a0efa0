// A wrapper around a store that counts operations, fails a chosen one, and can block writes.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include <cairn/storage/stores/store_decorator.hpp>

namespace cairn::testing {

// The exception that a chosen operation throws. It is not one of Cairn's types.
class StoreFault : public std::runtime_error {
 public:
  explicit StoreFault(const std::string& operation) : std::runtime_error("planned fault of the store: " + operation) {}
};

// Shared by a wrapped store and its writers. Thread-safe.
class StoreControl {
 public:
  // Makes operation `ordinal` (counted from 0) fail. `ObjectWriter::discard` must not fail and is
  // not counted.
  void fail_at(std::size_t ordinal) { fail_at_ = ordinal; }
  // Called before every counted operation. May throw.
  std::function<void(const std::string& operation)> before;

  void count(const std::string& operation) {
    if (before) before(operation);
    if (operations_++ == fail_at_) throw StoreFault(operation);
  }
  std::size_t operations() const { return operations_; }

  // Blocks all later writes until `open_gate`.
  void close_gate() {
    std::lock_guard lock(mutex_);
    gate_closed_ = true;
  }
  void open_gate() {
    std::lock_guard lock(mutex_);
    gate_closed_ = false;
    changed_.notify_all();
  }
  // Waits until `count` writes are in flight.
  void wait_for_writes(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return writing_ >= count; });
  }
  std::size_t writes_at_once_max() const {
    std::lock_guard lock(mutex_);
    return writes_max_;
  }
  std::uint64_t bytes_at_once_max() const {
    std::lock_guard lock(mutex_);
    return bytes_max_;
  }

  void begin_write(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    ++writing_;
    bytes_ += bytes;
    writes_max_ = std::max(writes_max_, writing_);
    bytes_max_ = std::max(bytes_max_, bytes_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !gate_closed_; });
  }
  void end_write(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    --writing_;
    bytes_ -= bytes;
  }

 private:
  std::atomic<std::size_t> operations_{0};
  std::atomic<std::size_t> fail_at_{static_cast<std::size_t>(-1)};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool gate_closed_ = false;
  std::size_t writing_ = 0;
  std::size_t writes_max_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t bytes_max_ = 0;
};

class WrappedStore : public StoreDecorator {
 public:
  WrappedStore(std::shared_ptr<Store> inner, std::shared_ptr<StoreControl> control)
      : StoreDecorator(std::move(inner)), control_(std::move(control)) {}

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    const std::string name = operation.name;
    control_->count(name == "read" || name == "size_bytes" ? name + " " + std::string(operation.object) : name);
    act();
  }
  void write_at(ObjectWriter& writer, const ObjectName&, std::uint64_t offset, ByteSpan bytes) override {
    control_->count("write_at");
    control_->begin_write(bytes.size());
    try {
      writer.write_at(offset, bytes);
    } catch (...) {
      control_->end_write(bytes.size());
      throw;
    }
    control_->end_write(bytes.size());
  }

  const std::shared_ptr<StoreControl> control_;
};

// A store whose operations are performed by a function of the test, which calls `act` for that.
class AroundStore final : public StoreDecorator {
 public:
  using Around = std::function<void(Store& inner, const DecoratedOperation& operation, const std::function<void()>& act)>;
  using Traits = std::function<void(StoreTraits& traits)>;  // changes those of the inner store
  AroundStore(std::shared_ptr<Store> inner, Around around, Traits change)
      : StoreDecorator(std::move(inner)), around_(std::move(around)), change_(std::move(change)) {}
  StoreTraits traits() const override {
    StoreTraits traits = StoreDecorator::traits();
    if (change_) change_(traits);
    return traits;
  }

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    around_ ? around_(inner(), operation, act) : act();
  }
  const Around around_;
  const Traits change_;
};

// Registers a scheme, once in a process: `<scheme>:<rest>` is `<inner>:<rest>` with the functions.
inline void register_around(const std::string& scheme, const std::string& inner, const AroundStore::Around& around,
                            const AroundStore::Traits& change = nullptr) {
  register_store(scheme, [=](const std::string& url) {
    return std::make_shared<AroundStore>(open_store(inner + url.substr(scheme.size())), around, change);
  });
}

}  // namespace cairn::testing
