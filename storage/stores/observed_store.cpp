#include <exception>
#include <utility>

#include <cairn/base/running_work.hpp>
#include <cairn/storage/store_observer.hpp>
#include <cairn/storage/stores/store_decorator.hpp>

namespace cairn {
namespace {

class ObservedStore final : public StoreDecorator {
 public:
  ObservedStore(std::shared_ptr<Store> inner, std::shared_ptr<StoreObserver> observer)
      : StoreDecorator(std::move(inner)), observer_(std::move(observer)) {}

 private:
  // Reports the operation to the observer if it was slow or failed.
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    Work work = RunningWork::of_this_thread();
    work.actor = Actor::kStore;
    work.name = operation.name;
    work.object = operation.object;
    const RunningWork running(work);
    const MonotonicTime begin = system_clock().now();
    const auto tell = [&](std::optional<ErrorCode> code, std::string_view failure) {
      const Duration duration = system_clock().now() - begin;
      // Looking for an object that is not there is no failure of the store.
      const bool has_failed = code && *code != ErrorCode::kNotFound;
      if (duration < observer_->duration_min() && !has_failed) return;
      observer_->on_operation({operation.name, url_of(operation), operation.bytes, duration, code, failure});
    };
    try {
      act();
    } catch (const std::exception& error) {
      const auto* const own = dynamic_cast<const Error*>(&error);
      tell(own != nullptr ? own->code() : ErrorCode::kUnavailable, error.what());
      throw;
    }
    tell(std::nullopt, {});
  }

  const std::shared_ptr<StoreObserver> observer_;
};

}  // namespace

std::shared_ptr<Store> observe_operations(std::shared_ptr<Store> store, std::shared_ptr<StoreObserver> observer) {
  if (!observer) return store;
  return std::make_shared<ObservedStore>(std::move(store), std::move(observer));
}

}  // namespace cairn
