// A store in memory from which tests derive stores that fail or count.
#pragma once

#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/stores/store_decorator.hpp>

namespace cairn::testing {

// Does what Store does by default, so that a derived store sees each of its operations.
class MemoryStore : public StoreDecorator {
 public:
  MemoryStore(const std::string& name, const std::string& path)
      : StoreDecorator(open_memory_store("mem://" + name + (path.empty() ? "" : "/" + path))) {}

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override {
    return inner().create(name, options);
  }
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override {
    return Store::read_end(name, bytes_max);
  }
  std::vector<ObjectName> children() override { return Store::children(); }
  RunView look() override { return Store::look(); }
  PlaceContents contents() override { return Store::contents(); }
  void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) override {
    inner().begin_attempt(save_id, overwrite);
  }
  bool has_attempt(const std::string& save_id) override { return Store::has_attempt(save_id); }
  void retract(const ObjectName& mark = "", const std::string& text = "") override { Store::retract(mark, text); }

 private:
  void around(const DecoratedOperation&, const std::function<void()>& act) override { act(); }
};

}  // namespace cairn::testing
