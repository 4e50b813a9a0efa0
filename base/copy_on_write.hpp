// A value whose copies share memory until one of them is changed.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace cairn {

// Different copies may be used in different threads, as with any value. A moved-from object holds a
// default-constructed value.
template <class Value>
class CopyOnWrite {
 public:
  CopyOnWrite() : value_(empty()) {}
  CopyOnWrite(Value value) : value_(std::make_shared<Value>(std::move(value))) {}
  CopyOnWrite(const CopyOnWrite&) = default;
  CopyOnWrite(CopyOnWrite&& other) noexcept : value_(std::exchange(other.value_, empty())) {}
  CopyOnWrite& operator=(CopyOnWrite other) noexcept {
    value_.swap(other.value_);
    return *this;
  }

  const Value& operator*() const noexcept { return *value_; }
  const Value* operator->() const noexcept { return value_.get(); }
  // Returns the value so that the caller can change it. Copies the value first if other objects
  // share it. The reference may be used for changes until this object is copied, moved or assigned.
  Value& edit() {
    if (value_.use_count() != 1) {
      value_ = std::make_shared<Value>(*value_);
    } else {
      // Another thread may just have destroyed its copy. That thread's reads of the value must
      // precede the caller's changes.
      std::atomic_thread_fence(std::memory_order_acquire);
    }
    return *value_;
  }
  bool shares_with(const CopyOnWrite& other) const noexcept { return value_ == other.value_; }

  friend bool operator==(const CopyOnWrite& a, const CopyOnWrite& b) { return a.shares_with(b) || *a == *b; }
  friend bool operator!=(const CopyOnWrite& a, const CopyOnWrite& b) { return !(a == b); }

 private:
  static const std::shared_ptr<Value>& empty() {
    static const auto& value = *new std::shared_ptr<Value>(std::make_shared<Value>());  // outlives all statics
    return value;
  }

  std::shared_ptr<Value> value_;  // never null
};

}  // namespace cairn
