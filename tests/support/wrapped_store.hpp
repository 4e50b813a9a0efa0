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
#include <vector>

#include <cairn/storage/store.hpp>

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

class WrappedStore : public Store {
 public:
  WrappedStore(std::shared_ptr<Store> inner, std::shared_ptr<StoreControl> control)
      : inner_(std::move(inner)), control_(std::move(control)) {}

  std::string url() const override { return inner_->url(); }
  bool is_shared() const override { return inner_->is_shared(); }
  void create_root() override {
    control_->count("create_root");
    inner_->create_root();
  }
  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
    control_->count("create");
    return std::make_unique<Writer>(inner_->create(name, options), control_);
  }
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    control_->count("read " + name);
    inner_->read(name, ranges);
  }
  std::uint64_t size_bytes(const ObjectName& name) override {
    control_->count("size_bytes " + name);
    return inner_->size_bytes(name);
  }
  bool exists(const ObjectName& name) override {
    control_->count("exists");
    return inner_->exists(name);
  }
  bool is_taken(const ObjectName& name) override {
    control_->count("exists");
    return inner_->is_taken(name);
  }
  std::vector<ObjectInfo> list(const ObjectName& prefix) override {
    control_->count("list");
    return inner_->list(prefix);
  }
  void remove(const ObjectName& name) override {
    control_->count("remove");
    inner_->remove(name);
  }
  void begin_attempt(const std::string& save_id) override {
    control_->count("begin_attempt");
    inner_->begin_attempt(save_id);
  }
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    control_->count("publish");
    inner_->publish(save_id, record, overwrite);
  }
  void fence(const std::string& save_id) override {
    control_->count("fence");
    inner_->fence(save_id);
  }
  std::vector<std::string> open_attempts() override {
    control_->count("open_attempts");
    return inner_->open_attempts();
  }
  std::vector<std::string> fenced_attempts() override {
    control_->count("fenced_attempts");
    return inner_->fenced_attempts();
  }
  void clear_attempt(const std::string& save_id) override {
    control_->count("clear_attempt");
    inner_->clear_attempt(save_id);
  }
  void retract() override {
    control_->count("retract");
    inner_->retract();
  }
  bool leads_elsewhere() override { return inner_->leads_elsewhere(); }
  void remove_root() override {
    control_->count("remove_root");
    inner_->remove_root();
  }

 private:
  class Writer : public ObjectWriter {
   public:
    Writer(std::unique_ptr<ObjectWriter> inner, std::shared_ptr<StoreControl> control)
        : inner_(std::move(inner)), control_(std::move(control)) {}
    void write_at(std::uint64_t offset, ByteSpan bytes) override {
      control_->count("write_at");
      control_->begin_write(bytes.size());
      try {
        inner_->write_at(offset, bytes);
      } catch (...) {
        control_->end_write(bytes.size());
        throw;
      }
      control_->end_write(bytes.size());
    }
    std::size_t alignment_bytes() const override { return inner_->alignment_bytes(); }
    void sync(std::uint64_t length) override {
      control_->count("sync");
      inner_->sync(length);
    }
    void close(std::uint64_t length) override {
      control_->count("close");
      inner_->close(length);
    }
    void discard() noexcept override { inner_->discard(); }

   private:
    std::unique_ptr<ObjectWriter> inner_;
    std::shared_ptr<StoreControl> control_;
  };

  std::shared_ptr<Store> inner_;
  std::shared_ptr<StoreControl> control_;
};

}  // namespace cairn::testing
