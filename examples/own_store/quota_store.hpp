// A store of your own: a directory whose checkpoints have a limit on their size. A program
// registers it once, and then uses its URLs like other places:
//
//   own_store::register_quota(std::uint64_t{100} << 30);
//   cairn::save(state, "quota:///scratch/run/step_1");
//
// cairn/storage/store.hpp says what each method must guarantee, and a suite of tests checks it (see
// tests/install/own_store.cpp). A store that wraps another one passes every call on.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/storage/store.hpp>

namespace own_store {
using namespace cairn;

class QuotaStore : public Store {
 public:
  QuotaStore(std::string url, std::uint64_t bytes_max)
      : url_(std::move(url)), bytes_max_(bytes_max), directory_(open_store("file" + url_.substr(url_.find(':')))) {}

  // The rule. A rank creates its file before it writes, so a save that is too large fails early.
  // Ranks that create files at once do not see each other's, so the limit is approximate.
  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override {
    std::uint64_t bytes = options.expected_bytes;
    for (const ObjectInfo& object : directory_->list()) bytes += object.size_bytes;
    if (bytes > bytes_max_)
      throw Error(ErrorCode::kNoSpace, "cannot create " + name + " in " + url_ + ": there would be " + std::to_string(bytes) +
                                           " bytes, more than the quota of " + std::to_string(bytes_max_));
    return directory_->create(name, options);
  }

  std::string url() const override { return url_; }
  bool is_shared() const override { return directory_->is_shared(); }
  StoreTraits traits() const override {
    StoreTraits traits = directory_->traits();
    traits.has_links = false;  // `link` is not overridden
    return traits;
  }
  void create_root() override { directory_->create_root(); }
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override { directory_->read(name, ranges); }
  std::uint64_t size_bytes(const ObjectName& name) override { return directory_->size_bytes(name); }
  bool exists(const ObjectName& name) override { return directory_->exists(name); }
  bool is_taken(const ObjectName& name) override { return directory_->is_taken(name); }
  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override { return directory_->list(prefix); }
  std::vector<ObjectName> children() override { return directory_->children(); }
  void remove(const ObjectName& name) override { directory_->remove(name); }

  void begin_attempt(const std::string& save_id, Overwrite overwrite) override { directory_->begin_attempt(save_id, overwrite); }
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    directory_->publish(save_id, record, overwrite);
  }
  void fence(const std::string& save_id) override { directory_->fence(save_id); }
  std::vector<std::string> open_attempts() override { return directory_->open_attempts(); }
  std::vector<std::string> fenced_attempts() override { return directory_->fenced_attempts(); }
  bool has_attempt(const std::string& save_id) override { return directory_->has_attempt(save_id); }
  void clear_attempt(const std::string& save_id) override { directory_->clear_attempt(save_id); }

  void retract(const ObjectName& mark, const std::string& text) override { directory_->retract(mark, text); }
  bool leads_elsewhere() override { return directory_->leads_elsewhere(); }
  void remove_root() override { directory_->remove_root(); }

 private:
  const std::string url_;
  const std::uint64_t bytes_max_;
  const std::shared_ptr<Store> directory_;
};

inline void register_quota(std::uint64_t bytes_max) {
  register_store("quota", [bytes_max](const std::string& url) { return std::make_shared<QuotaStore>(url, bytes_max); });
}

}  // namespace own_store
