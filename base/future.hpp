// A value that arrives later, with callbacks. Asynchronous writers, readers and stores return
// futures.
//
// Unlike std::future, a Future can call back instead of blocking; actors must not block. Futures
// are thread-safe. A callback runs on the thread that fulfils the promise, or at once on the
// caller's thread if the future is ready. No lock is held while a callback runs.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

template <class T>
class Promise;

template <class T>
class Future {
 public:
  Future() = default;  // empty: valid() is false

  // Returns whether a promise made this future. The other functions must not be called on an empty
  // future.
  bool valid() const { return state_ != nullptr; }
  bool ready() const {
    MutexLock lock(state_->mutex);
    return state_->done();
  }

  // Blocks until the value or exception is available. Returns a copy of the value, or rethrows the
  // exception. May be called many times.
  T get() const {
    MutexLock lock(state_->mutex);
    while (!state_->done()) state_->changed.wait(state_->mutex);
    if (state_->exception) std::rethrow_exception(state_->exception);
    return *state_->value;
  }

  // Calls `callback(future)` as soon as the future is ready; `get()` does not block in the
  // callback. Callbacks added before the future is ready run in the order in which they were added.
  void on_ready(std::function<void(const Future<T>&)> callback) const {
    {
      MutexLock lock(state_->mutex);
      if (!state_->done()) {
        state_->callbacks.push_back(std::move(callback));
        return;
      }
    }
    callback(*this);
  }

 private:
  friend class Promise<T>;
  struct State {
    Mutex mutex;
    CondVar changed;
    std::optional<T> value CAIRN_GUARDED_BY(mutex);
    std::exception_ptr exception CAIRN_GUARDED_BY(mutex);
    std::vector<std::function<void(const Future<T>&)>> callbacks CAIRN_GUARDED_BY(mutex);
    bool done() const CAIRN_REQUIRES(mutex) { return value.has_value() || exception != nullptr; }
  };
  std::shared_ptr<State> state_;
};

// The producer's side of a Future. A promise must be fulfilled at most once. Destroying an
// unfulfilled promise fails its future, so that no caller waits for ever.
template <class T>
class Promise {
 public:
  Promise() { future_.state_ = std::make_shared<typename Future<T>::State>(); }
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    std::swap(future_, other.future_);
    return *this;
  }
  ~Promise() {
    if (future_.valid() && !future_.ready())
      set_exception(std::make_exception_ptr(InternalError("a promise was dropped before its value was set")));
  }

  const Future<T>& future() const { return future_; }
  void set_value(T value) { fulfil(std::move(value), nullptr); }
  void set_exception(const std::exception_ptr& exception) { fulfil(std::nullopt, exception); }

 private:
  void fulfil(std::optional<T> value, const std::exception_ptr& exception) {
    std::vector<std::function<void(const Future<T>&)>> callbacks;
    auto state = future_.state_;
    {
      MutexLock lock(state->mutex);
      if (state->done()) throw InternalError("a promise was fulfilled twice");
      if (value) state->value.emplace(std::move(*value));
      state->exception = exception;
      callbacks.swap(state->callbacks);
    }
    state->changed.notify_all();
    for (auto& callback : callbacks) callback(future_);
  }

  Future<T> future_;
};

template <class T>
Future<T> ready_future(T value) {
  Promise<T> promise;
  promise.set_value(std::move(value));
  return promise.future();
}

}  // namespace cairn
