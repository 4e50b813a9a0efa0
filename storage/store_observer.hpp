// Reports slow and failed store operations, for traces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// One finished operation. Views are valid only during StoreObserver::on_operation, except `name`,
// which is a method's name with static lifetime.
struct StoreOperation {
  std::string_view name;    // "write_at"
  std::string_view url;     // URL of the object, or of the store
  std::uint64_t bytes = 0;  // bytes written or read; for `sync` and `close`, the file's length; for all other operations 0
  Duration duration{0};
  std::optional<ErrorCode> code;  // absent if the operation succeeded
  std::string_view failure;       // text of the exception, if any
};

class StoreObserver {
 public:
  explicit StoreObserver(Duration duration_min) : duration_min_(duration_min) {}
  virtual ~StoreObserver() = default;

  // Receives an operation that took `duration_min` or longer, or failed with a code other than
  // kNotFound.
  // Runs on the thread of the operation, possibly on many threads at once. Must be fast.
  virtual void on_operation(const StoreOperation& operation) noexcept = 0;
  Duration duration_min() const { return duration_min_; }

 private:
  const Duration duration_min_;
};

// Returns `store` wrapped so that `observer` sees its operations; `store` itself if `observer` is
// null.
std::shared_ptr<Store> observe_operations(std::shared_ptr<Store> store, std::shared_ptr<StoreObserver> observer);

}  // namespace cairn
