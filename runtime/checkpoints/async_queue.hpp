// The asynchronous saves of one checkpointer on one rank: those in flight, their order, and
// failures that nobody has read. Internal.
//
// std::exit may end the process without destroying a checkpointer. An exit handler then waits for
// the checkpointer's saves and logs their failures, as its destructor would.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/runtime/checkpoints/async_save.hpp>

namespace cairn {

// Not thread-safe, except `order`.
class AsyncQueue {
 public:
  AsyncQueue() : order_(std::make_shared<SaveOrder>()) {}
  // Waits for saves in flight, for at most `deadline`; then cancels them, and waits as long again.
  // Logs failures that nobody has read. Detaches saves that are still running, and keeps `needed`
  // alive for them.
  void close(std::chrono::milliseconds deadline, const std::shared_ptr<void>& needed);

  const std::shared_ptr<SaveOrder>& order() const { return order_; }
  void add(std::shared_ptr<AsyncSave> save);
  bool any_in_flight() const;
  // Waits for the saves of one slot (AsyncSave::Parts::slot), or for all if `slot` is null. Returns
  // false if one is still running at the deadline.
  bool wait(std::optional<std::chrono::milliseconds> deadline, const std::string* slot = nullptr) const;
  // Cancels the saves whose turn has not come, and waits until they have ended.
  void replace(const std::string& why) const;
  // Returns the first failure that nobody has read, and marks it as read; null if there is none.
  // `by` describes the current call; the text of the exception begins with it.
  std::exception_ptr take_unread(const std::string& by);

 private:
  const std::shared_ptr<SaveOrder> order_;
  std::vector<std::shared_ptr<AsyncSave>> saves_;  // in flight, or ended and perhaps unread; oldest first
};

}  // namespace cairn
