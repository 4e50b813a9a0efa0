// Values and vectors whose copies share memory until one of them is changed.
#pragma once

#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

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

// A vector of that kind. A function that is not const copies the elements first if other vectors
// share them, and so does a loop over a vector that is not const.
template <class Value>
class CopyOnWriteVector : public CopyOnWrite<std::vector<Value>> {
  using Base = CopyOnWrite<std::vector<Value>>;

 public:
  using Vector = std::vector<Value>;
  using value_type = Value;
  using iterator = typename Vector::iterator;
  using const_iterator = typename Vector::const_iterator;

  CopyOnWriteVector() = default;
  CopyOnWriteVector(Vector values) : Base(std::move(values)) {}
  CopyOnWriteVector(std::initializer_list<Value> values) : Base(Vector(values)) {}

  std::size_t size() const noexcept { return (**this).size(); }
  bool empty() const noexcept { return (**this).empty(); }
  const Value* data() const noexcept { return (**this).data(); }
  const_iterator begin() const noexcept { return (**this).begin(); }
  const_iterator end() const noexcept { return (**this).end(); }
  const Value& operator[](std::size_t at) const { return (**this)[at]; }
  const Value& at(std::size_t at) const { return (**this).at(at); }
  const Value& front() const { return (**this).front(); }
  const Value& back() const { return (**this).back(); }

  iterator begin() { return this->edit().begin(); }
  iterator end() { return this->edit().end(); }
  Value& operator[](std::size_t at) { return this->edit()[at]; }
  Value& at(std::size_t at) { return this->edit().at(at); }
  Value& front() { return this->edit().front(); }
  Value& back() { return this->edit().back(); }
  void push_back(Value value) { this->edit().push_back(std::move(value)); }
  Value& emplace_back() { return this->edit().emplace_back(); }
  template <class... Arguments>
  iterator insert(Arguments&&... arguments) {
    return this->edit().insert(std::forward<Arguments>(arguments)...);
  }
  iterator erase(iterator first, iterator last) { return this->edit().erase(first, last); }
  iterator erase(iterator at) { return this->edit().erase(at); }
  void pop_back() { this->edit().pop_back(); }
  void resize(std::size_t count) { this->edit().resize(count); }
  void reserve(std::size_t count) { this->edit().reserve(count); }
  void clear() { *this = {}; }
};

}  // namespace cairn
