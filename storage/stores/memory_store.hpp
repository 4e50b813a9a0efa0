// A store in memory, "mem://<name>/<path>", for tests, for examples and for a process that saves
// only for itself.
//
// All stores with one <name> in this process share one memory, which lives until `forget_memory` or
// the end of the process. <path> is a place in that memory, so parent_url and child_url work as for
// directories. Nothing survives the process; all other guarantees of a store hold. An object that
// is being written occupies its name but cannot be read before it is synced or closed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/storage/store.hpp>

namespace cairn {

class MemoryStore : public Store {
 public:
  // `name` and `path` are as in the URL; `path` may be empty.
  MemoryStore(const std::string& name, const std::string& path);
  ~MemoryStore() override;

  std::string url() const override;
  bool is_shared() const override { return false; }
  void create_root() override {}

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override;
  std::uint64_t size_bytes(const ObjectName& name) override;
  bool exists(const ObjectName& name) override;
  bool is_taken(const ObjectName& name) override;
  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override;
  void remove(const ObjectName& name) override;

  void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) override;
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override;
  void fence(const std::string& save_id) override;
  std::vector<std::string> open_attempts() override;
  std::vector<std::string> fenced_attempts() override;
  void clear_attempt(const std::string& save_id) override;

 private:
  struct Memory;
  class Writer;
  static std::map<std::string, std::shared_ptr<Memory>>& memories();
  friend void forget_memory(const std::string& name);

  std::string full_name(const ObjectName& name) const { return place_ + name; }
  std::vector<std::string> attempts_that_are(bool open);
  // Returns null if there is no such object, or if it is being written.
  std::shared_ptr<const std::string> content_of(const ObjectName& name);

  std::string name_;
  std::string place_;  // "" or a path that ends with '/'
  std::shared_ptr<Memory> memory_;
};

// Creates the store for a "mem:" URL.
std::shared_ptr<Store> open_memory_store(const std::string& url);

// Drops the memory called `name`. Stores opened later begin empty; open stores keep their content.
void forget_memory(const std::string& name);

}  // namespace cairn
