// Events that an observer of a store receives.
#include <cairn/tests/support/plain.hpp>
// The tools use doctest, which the line above brings.
#include <atomic>
#include <mutex>
#include <thread>

#include <cairn/storage/store_observer.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

namespace cairn::testing {
namespace {

struct SeenOperation {
  std::string name, url, failure;
  std::uint64_t bytes = 0;
  std::optional<ErrorCode> code;
};

class SeenOperations final : public StoreObserver {
 public:
  using StoreObserver::StoreObserver;
  void on_operation(const StoreOperation& operation) noexcept override {
    const std::lock_guard lock(mutex_);
    seen.push_back(
        {std::string(operation.name), std::string(operation.url), std::string(operation.failure), operation.bytes, operation.code});
  }
  const SeenOperation& only() const {
    REQUIRE(seen.size() == 1);
    return seen.front();
  }
  std::vector<SeenOperation> seen;

 private:
  std::mutex mutex_;
};

std::shared_ptr<Store> memory() {
  static std::atomic<int> count{0};
  return open_memory_store("mem://observed_store_test_" + std::to_string(++count));
}

// Removes objects whose names no URL can have.
class TolerantStore final : public WrappedStore {
 public:
  using WrappedStore::WrappedStore;
  void remove(const ObjectName& name) override {
    if (name == "/fails") throw Error(ErrorCode::kUnavailable, "planned: it does not answer");
  }
};

}  // namespace

TEST_CASE("an observed store: with a minimum of 0, every operation is reported") {
  const auto seen = std::make_shared<SeenOperations>(Duration(0));
  const auto store = observe_operations(memory(), seen);
  store->create_root();
  const auto writer = store->create("object");
  std::thread([&] { writer->write_at(0, "some bytes"); }).join();
  writer->sync(10);
  char bytes[4];
  store->read("object", {{0, {bytes, 4}}});
  std::vector<std::string> told;
  for (const auto& operation : seen->seen) {
    told.push_back(operation.name + " " + std::to_string(operation.bytes));
    CHECK_FALSE(operation.code);
  }
  CHECK(told == std::vector<std::string>{"create_root 0", "create 0", "write_at 10", "sync 10", "read 4"});
  CHECK(seen->seen[2].url == child_url(store->url(), "object"));
}

TEST_CASE("an observed store: quick operations are not reported, but failures are") {
  const auto seen = std::make_shared<SeenOperations>(std::chrono::hours(1));
  const auto control = std::make_shared<StoreControl>();
  const auto inner = memory();
  const auto store = observe_operations(std::make_shared<WrappedStore>(inner, control), seen);
  store->create_root();
  store->create("object")->sync(0);
  CHECK_THROWS_AS(store->size_bytes("nothing"), Error);
  CHECK(seen->seen.empty());
  CHECK_THROWS_AS(store->create("object"), Error);
  CHECK(seen->only().name == "create");
  CHECK(seen->only().code == ErrorCode::kAlreadyExists);
  CHECK(seen->only().failure.find("object") != std::string::npos);
  seen->seen.clear();
  control->fail_at(control->operations());
  CHECK_THROWS_AS(store->list(), StoreFault);
  CHECK(seen->only().failure.find("planned fault of the store") != std::string::npos);
}

TEST_CASE("an observed store: it behaves like the store, and is the store without observer") {
  const auto plain = memory();
  CHECK(observe_operations(plain, nullptr) == plain);
  const auto seen = std::make_shared<SeenOperations>(std::chrono::hours(1));
  const auto observe = [&](const std::string& url) { return observe_operations(open_memory_store(url), seen); };
  check_store_conformance([&] { return observe_operations(memory(), seen); }, [&](Store& store) { return observe(store.url()); },
                          [&](Store& store, const std::string& name) { return observe(child_url(store.url(), name)); });
}

}  // namespace cairn::testing
