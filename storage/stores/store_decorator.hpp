// Base class of stores that pass each operation on to another store and act before or after it, and
// a store that injects faults. Internal.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cairn/base/injection.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// An operation of a store or of a writer of its objects.
struct DecoratedOperation {
  const char* name;         // the method's name; `is_taken` counts as "exists"
  std::string_view object;  // empty: the operation concerns the whole store
  std::uint64_t bytes = 0;  // written or read; the file's length for sync and close; otherwise 0
};

// Owned by shared pointers: writers keep their store alive.
class StoreDecorator : public Store, public std::enable_shared_from_this<StoreDecorator> {
 public:
  explicit StoreDecorator(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  std::string url() const override { return inner_->url(); }
  bool is_shared() const override { return inner_->is_shared(); }
  StoreTraits traits() const override { return inner_->traits(); }
  void create_root() override {
    around({"create_root", {}}, [&] { inner_->create_root(); });
  }
  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
    auto writer = get({"create", name}, [&] { return inner_->create(name, options); });
    return std::make_unique<Writer>(std::move(writer), shared_from_this(), name);
  }
  std::uint64_t link(const std::string& source, const ObjectName& name, bool is_durable) override {
    return get({"link", name}, [&] { return inner_->link(source, name, is_durable); });
  }
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    std::uint64_t bytes = 0;
    for (const auto& range : ranges) bytes += range.destination.size();
    around({"read", name, bytes}, [&] { inner_->read(name, ranges); });
  }
  std::uint64_t size_bytes(const ObjectName& name) override {
    return get({"size_bytes", name}, [&] { return inner_->size_bytes(name); });
  }
  bool exists(const ObjectName& name) override {
    return get({"exists", name}, [&] { return inner_->exists(name); });
  }
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override {
    return get({"read", name, bytes_max}, [&] { return inner_->read_end(name, bytes_max); });
  }
  bool is_taken(const ObjectName& name) override {
    return get({"exists", name}, [&] { return inner_->is_taken(name); });
  }
  std::vector<ObjectInfo> list(const ObjectName& prefix) override {
    return get({"list", {}}, [&] { return inner_->list(prefix); });
  }
  std::vector<ObjectName> children() override {
    return get({"children", {}}, [&] { return inner_->children(); });
  }
  RunView look() override {
    return get({"children", {}}, [&] { return inner_->look(); });
  }
  void remove(const ObjectName& name) override {
    around({"remove", name}, [&] { inner_->remove(name); });
  }
  void begin_attempt(const std::string& save_id, Overwrite overwrite) override {
    around({"begin_attempt", {}}, [&] { inner_->begin_attempt(save_id, overwrite); });
  }
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    around({"publish", {}, record.size()}, [&] { inner_->publish(save_id, record, overwrite); });
  }
  void fence(const std::string& save_id) override {
    around({"fence", {}}, [&] { inner_->fence(save_id); });
  }
  std::vector<std::string> open_attempts() override {
    return get({"open_attempts", {}}, [&] { return inner_->open_attempts(); });
  }
  std::vector<std::string> fenced_attempts() override {
    return get({"fenced_attempts", {}}, [&] { return inner_->fenced_attempts(); });
  }
  PlaceContents contents() override {
    return get({"list", {}}, [&] { return inner_->contents(); });
  }
  bool has_attempt(const std::string& save_id) override {
    return get({"has_attempt", {}}, [&] { return inner_->has_attempt(save_id); });
  }
  void clear_attempt(const std::string& save_id) override {
    around({"clear_attempt", {}}, [&] { inner_->clear_attempt(save_id); });
  }
  void retract(const ObjectName& mark = "", const std::string& text = "") override {
    around({"retract", {}}, [&] { inner_->retract(mark, text); });
  }
  bool leads_elsewhere() override { return inner_->leads_elsewhere(); }
  void remove_root() override {
    around({"remove_root", {}}, [&] { inner_->remove_root(); });
  }
  std::shared_ptr<Store> fallback() override { return inner_->fallback(); }

 protected:
  // Runs `act`, which performs the operation, or throws instead. Called for every operation except
  // `leads_elsewhere` and `discard`, on the thread of the operation.
  virtual void around(const DecoratedOperation& operation, const std::function<void()>& act) = 0;
  // Writes to the object `name`. Derived classes may write fewer bytes and throw.
  virtual void write_at(ObjectWriter& writer, const ObjectName& name, std::uint64_t offset, ByteSpan bytes) {
    around({"write_at", name, bytes.size()}, [&] { writer.write_at(offset, bytes); });
  }
  Store& inner() { return *inner_; }
  // Returns the URL of the object, or of the store if the operation names no object. Returns "" if
  // the object's name is not valid in a URL.
  std::string url_of(const DecoratedOperation& operation) const {
    try {
      return operation.object.empty() ? url() : child_url(url(), std::string(operation.object));
    } catch (const std::exception&) {
      return "";
    }
  }

 private:
  class Writer final : public ObjectWriter {
   public:
    Writer(std::unique_ptr<ObjectWriter> inner, std::shared_ptr<StoreDecorator> store, ObjectName name)
        : inner_(std::move(inner)), store_(std::move(store)), name_(std::move(name)) {}
    void write_at(std::uint64_t offset, ByteSpan bytes) override { store_->write_at(*inner_, name_, offset, bytes); }
    std::size_t alignment_bytes() const override { return inner_->alignment_bytes(); }
    void finish(std::uint64_t length, bool is_durable) override {
      store_->around({is_durable ? "sync" : "close", name_, length}, [&] { inner_->finish(length, is_durable); });
    }
    void discard() noexcept override { inner_->discard(); }

   private:
    const std::unique_ptr<ObjectWriter> inner_;
    const std::shared_ptr<StoreDecorator> store_;
    const ObjectName name_;
  };

  template <class Act>
  std::invoke_result_t<const Act&> get(const DecoratedOperation& operation, const Act& act) {
    std::optional<std::invoke_result_t<const Act&>> result;
    around(operation, [&] { result = act(); });
    return *std::move(result);
  }

  const std::shared_ptr<Store> inner_;
};

// Wraps `store` so that `injector` can inject faults. Neither may be null. Operations of the store
// and its writers are fault sites of kind FaultSite::kStore, named after their methods (`is_taken`
// counts as "exists"). Actions of a rule:
//   throw         the operation fails with InjectedFault and does nothing
//   disk-full     the operation fails with kNoSpace and does nothing
//   short-write   the first half of the bytes is written, then `write_at` fails with kUnavailable
//   read-flip     one bit of the bytes read is flipped, silently
std::shared_ptr<Store> inject_faults(std::shared_ptr<Store> store, std::shared_ptr<Injector> injector);

// Returns the names of the operations that an InjectionRule can name.
const std::vector<std::string>& injectable_store_operations();

}  // namespace cairn
