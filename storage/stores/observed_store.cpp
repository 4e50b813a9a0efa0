#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include <cairn/storage/store_observer.hpp>

namespace cairn {
namespace {

// Runs one operation and reports it to the observer if it was slow or failed. Calls `url_of` only
// for a report. If that fails, reports the operation without a URL.
template <class Act, class UrlOf>
std::invoke_result_t<const Act&> observe(StoreObserver& observer, const char* name, std::uint64_t bytes, const UrlOf& url_of,
                                         const Act& act) {
  const MonotonicTime begin = system_clock().now();
  const auto tell = [&](std::optional<ErrorCode> code, std::string_view failure) {
    const Duration duration = system_clock().now() - begin;
    // Looking for an object that is not there is no failure of the store.
    const bool has_failed = code && *code != ErrorCode::kNotFound;
    if (duration < observer.duration_min() && !has_failed) return;
    std::string url;
    try {
      url = url_of();
    } catch (const std::exception&) {  // the report must not change how the operation ends
    }
    observer.on_operation({name, url, bytes, duration, code, failure});
  };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<const Act&>>) {
      act();
      tell(std::nullopt, {});
    } else {
      auto result = act();
      tell(std::nullopt, {});
      return result;
    }
  } catch (const Error& error) {
    tell(error.code(), error.what());
    throw;
  } catch (const std::exception& error) {
    tell(ErrorCode::kUnavailable, error.what());
    throw;
  }
}

class ObservedWriter final : public ObjectWriter {
 public:
  ObservedWriter(std::unique_ptr<ObjectWriter> inner, std::shared_ptr<StoreObserver> observer, std::string url)
      : inner_(std::move(inner)), observer_(std::move(observer)), url_(std::move(url)) {}

  void write_at(std::uint64_t offset, ByteSpan bytes) override {
    observed("write_at", bytes.size(), [&] { inner_->write_at(offset, bytes); });
  }
  std::size_t alignment_bytes() const override { return inner_->alignment_bytes(); }
  void sync(std::uint64_t length) override {
    observed("sync", length, [&] { inner_->sync(length); });
  }
  void close(std::uint64_t length) override {
    observed("close", length, [&] { inner_->close(length); });
  }
  void discard() noexcept override { inner_->discard(); }

 private:
  template <class Act>
  void observed(const char* name, std::uint64_t bytes, const Act& act) {
    observe(
        *observer_, name, bytes, [this] { return url_; }, act);
  }

  const std::unique_ptr<ObjectWriter> inner_;
  const std::shared_ptr<StoreObserver> observer_;
  const std::string url_;
};

class ObservedStore final : public Store {
 public:
  ObservedStore(std::shared_ptr<Store> inner, std::shared_ptr<StoreObserver> observer)
      : inner_(std::move(inner)), observer_(std::move(observer)), url_(inner_->url()) {}

  std::string url() const override { return url_; }
  bool is_shared() const override { return inner_->is_shared(); }
  void create_root() override {
    here("create_root", 0, [&] { inner_->create_root(); });
  }
  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
    auto writer = at("create", name, 0, [&] { return inner_->create(name, options); });
    return std::make_unique<ObservedWriter>(std::move(writer), observer_, child_url(url_, name));
  }
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    std::uint64_t bytes = 0;
    for (const auto& range : ranges) bytes += range.destination.size();
    at("read", name, bytes, [&] { inner_->read(name, ranges); });
  }
  std::uint64_t size_bytes(const ObjectName& name) override {
    return at("size_bytes", name, 0, [&] { return inner_->size_bytes(name); });
  }
  bool exists(const ObjectName& name) override {
    return at("exists", name, 0, [&] { return inner_->exists(name); });
  }
  bool is_taken(const ObjectName& name) override {
    return at("is_taken", name, 0, [&] { return inner_->is_taken(name); });
  }
  std::vector<ObjectInfo> list(const ObjectName& prefix) override {
    return here("list", 0, [&] { return inner_->list(prefix); });
  }
  std::vector<ObjectName> children() override {
    return here("children", 0, [&] { return inner_->children(); });
  }
  void remove(const ObjectName& name) override {
    at("remove", name, 0, [&] { inner_->remove(name); });
  }
  void begin_attempt(const std::string& save_id) override {
    here("begin_attempt", 0, [&] { inner_->begin_attempt(save_id); });
  }
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    here("publish", record.size(), [&] { inner_->publish(save_id, record, overwrite); });
  }
  void fence(const std::string& save_id) override {
    here("fence", 0, [&] { inner_->fence(save_id); });
  }
  std::vector<std::string> open_attempts() override {
    return here("open_attempts", 0, [&] { return inner_->open_attempts(); });
  }
  std::vector<std::string> fenced_attempts() override {
    return here("fenced_attempts", 0, [&] { return inner_->fenced_attempts(); });
  }
  bool has_attempt(const std::string& save_id) override {
    return here("has_attempt", 0, [&] { return inner_->has_attempt(save_id); });
  }
  void clear_attempt(const std::string& save_id) override {
    here("clear_attempt", 0, [&] { inner_->clear_attempt(save_id); });
  }
  void retract() override {
    here("retract", 0, [&] { inner_->retract(); });
  }
  bool leads_elsewhere() override { return inner_->leads_elsewhere(); }
  void remove_root() override {
    here("remove_root", 0, [&] { inner_->remove_root(); });
  }

 private:
  template <class Act>
  std::invoke_result_t<const Act&> here(const char* operation, std::uint64_t bytes, const Act& act) {
    return observe(
        *observer_, operation, bytes, [this] { return url_; }, act);
  }
  template <class Act>
  std::invoke_result_t<const Act&> at(const char* operation, const ObjectName& name, std::uint64_t bytes, const Act& act) {
    return observe(
        *observer_, operation, bytes, [&] { return child_url(url_, name); }, act);
  }

  const std::shared_ptr<Store> inner_;
  const std::shared_ptr<StoreObserver> observer_;
  const std::string url_;
};

}  // namespace

std::shared_ptr<Store> observe_operations(std::shared_ptr<Store> store, std::shared_ptr<StoreObserver> observer) {
  if (!observer) return store;
  return std::make_shared<ObservedStore>(std::move(store), std::move(observer));
}

}  // namespace cairn
