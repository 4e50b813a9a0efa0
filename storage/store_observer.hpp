// Watching the operations of a store that take long, or fail: what traces have of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Borrowed for the call. `name`, that of a method, lives for ever.
struct StoreOperation {
  std::string_view name;    // "write_at"
  std::string_view url;     // of the object, or of the store
  std::uint64_t bytes = 0;  // written or read, 0 where that is not what it does
  Duration duration{0};
  std::optional<ErrorCode> code;  // nothing: it succeeded
  std::string_view failure;       // the text of what was thrown
};

class StoreObserver {
 public:
  explicit StoreObserver(Duration duration_min) : duration_min_(duration_min) {}
  virtual ~StoreObserver() = default;

  // An operation has taken `duration_min` or longer, or has failed, and not for want of an object that was asked for. On the thread that it
  // ran on, of many at once; must be fast.
  virtual void on_operation(const StoreOperation& operation) noexcept = 0;
  Duration duration_min() const { return duration_min_; }

 private:
  const Duration duration_min_;
};

// `store`, watched by `observer`; itself where that is null.
std::shared_ptr<Store> observe_operations(std::shared_ptr<Store> store, std::shared_ptr<StoreObserver> observer);

}  // namespace cairn
