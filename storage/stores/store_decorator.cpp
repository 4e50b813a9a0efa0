#include <cairn/storage/stores/store_decorator.hpp>

#include <cairn/base/running_work.hpp>
#include <cairn/storage/store_observer.hpp>

namespace cairn {
namespace {

// The store does not know which rank uses it, so the injector uses the rank of the process.
constexpr int kUnknownRank = -1;

// Applies the rules for `operation`. Returns those that the caller must act on. Throws if a rule
// says that the disk is full.
std::vector<InjectionRule> pass(Injector& injector, const char* operation, const std::string& url) {
  auto rules = injector.pass(FaultSite::kStore, operation, kUnknownRank);
  for (const auto& rule : rules)
    if (rule.action == FaultAction::kDiskFull)
      throw Error(ErrorCode::kNoSpace,
                  "cannot " + std::string(operation) + " at " + url + ": the disk is full, as injected by \"" + rule.text + "\"");
  return rules;
}

class InjectedStore : public StoreDecorator {
 public:
  InjectedStore(std::shared_ptr<Store> inner, std::shared_ptr<Injector> injector)
      : StoreDecorator(std::move(inner)), injector_(std::move(injector)) {}

  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    // The rules are taken before the read and flip bits after it.
    const auto rules = pass(*injector_, "read", url_of({"read", name}));
    inner().read(name, ranges);
    for (const auto& rule : rules)
      if (rule.action == FaultAction::kReadFlip) flip(ranges);
  }

  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override {
    const auto rules = pass(*injector_, "read", url_of({"read", name}));
    auto end = inner().read_end(name, bytes_max);
    for (const auto& rule : rules)
      if (end && rule.action == FaultAction::kReadFlip) flip({{0, {end->content.data(), end->content.size()}}});
    return end;
  }

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    pass(*injector_, operation.name, url_of(operation));
    act();
  }

  void write_at(ObjectWriter& writer, const ObjectName& name, std::uint64_t offset, ByteSpan bytes) override {
    const std::string place = url_of({"write_at", name});
    for (const auto& rule : pass(*injector_, "write_at", place)) {
      if (rule.action != FaultAction::kShortWrite) continue;
      // Direct I/O takes aligned sizes only.
      const std::size_t half = bytes.size() / 2 - bytes.size() / 2 % writer.alignment_bytes();
      if (half > 0) writer.write_at(offset, bytes.subspan(0, half));
      throw Error(ErrorCode::kUnavailable, "cannot write " + std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) +
                                               " to " + place + ": only " + std::to_string(half) +
                                               " were taken, as injected by \"" + rule.text + "\"");
    }
    writer.write_at(offset, bytes);
  }

  // Flips a bit in the middle of the bytes read, because the ends may be padding.
  static void flip(const std::vector<ReadRange>& ranges) {
    std::size_t total = 0;
    for (const auto& range : ranges) total += range.destination.size();
    std::size_t at = total / 2;
    for (const auto& range : ranges) {
      if (at < range.destination.size()) {
        range.destination.data()[at] = static_cast<char>(range.destination.data()[at] ^ 1);
        return;
      }
      at -= range.destination.size();
    }
  }

  const std::shared_ptr<Injector> injector_;
};

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

std::shared_ptr<Store> inject_faults(std::shared_ptr<Store> store, std::shared_ptr<Injector> injector) {
  return std::make_shared<InjectedStore>(std::move(store), std::move(injector));
}

const std::vector<std::string>& injectable_store_operations() {
  static const std::vector<std::string> names{
      "create_root",   "create",   "write_at",   "sync",          "close",   "read",  "size_bytes",    "exists",
      "list",          "children", "remove",     "begin_attempt", "publish", "fence", "open_attempts", "fenced_attempts",
      "clear_attempt", "retract",  "remove_root"};
  return names;
}

std::shared_ptr<Store> observe_operations(std::shared_ptr<Store> store, std::shared_ptr<StoreObserver> observer) {
  if (!observer) return store;
  return std::make_shared<ObservedStore>(std::move(store), std::move(observer));
}

}  // namespace cairn
