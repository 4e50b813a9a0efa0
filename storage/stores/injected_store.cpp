#include <cairn/storage/stores/injected_store.hpp>

#include <utility>

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
                  "cannot " + std::string(operation) + " in " + url + ": the disk is full, as injected by \"" + rule.text + "\"");
  return rules;
}

class InjectedWriter : public ObjectWriter {
 public:
  InjectedWriter(std::unique_ptr<ObjectWriter> inner, std::shared_ptr<Injector> injector, std::string url)
      : inner_(std::move(inner)), injector_(std::move(injector)), url_(std::move(url)) {}

  void write_at(std::uint64_t offset, ByteSpan bytes) override {
    for (const auto& rule : pass(*injector_, "write_at", url_)) {
      if (rule.action != FaultAction::kShortWrite) continue;
      // Direct I/O takes aligned sizes only.
      const std::size_t half = bytes.size() / 2 - bytes.size() / 2 % inner_->alignment_bytes();
      if (half > 0) inner_->write_at(offset, bytes.subspan(0, half));
      throw Error(ErrorCode::kUnavailable, "cannot write " + std::to_string(bytes.size()) + " bytes at " + std::to_string(offset) +
                                               " to " + url_ + ": only " + std::to_string(half) + " were taken, as injected by \"" +
                                               rule.text + "\"");
    }
    inner_->write_at(offset, bytes);
  }
  std::size_t alignment_bytes() const override { return inner_->alignment_bytes(); }
  void sync(std::uint64_t length) override {
    pass(*injector_, "sync", url_);
    inner_->sync(length);
  }
  void close(std::uint64_t length) override {
    pass(*injector_, "close", url_);
    inner_->close(length);
  }
  void discard() noexcept override { inner_->discard(); }

 private:
  const std::unique_ptr<ObjectWriter> inner_;
  const std::shared_ptr<Injector> injector_;
  const std::string url_;
};

class InjectedStore : public Store {
 public:
  InjectedStore(std::shared_ptr<Store> inner, std::shared_ptr<Injector> injector)
      : inner_(std::move(inner)), injector_(std::move(injector)), url_(inner_->url()) {}

  std::string url() const override { return url_; }
  bool is_shared() const override { return inner_->is_shared(); }
  void create_root() override { passed("create_root").create_root(); }
  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options) override {
    return std::make_unique<InjectedWriter>(passed("create").create(name, options), injector_, child_url(url_, name));
  }
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override {
    // The rules are taken before the read and flip bits after it.
    const auto rules = pass(*injector_, "read", url_);
    inner_->read(name, ranges);
    for (const auto& rule : rules)
      if (rule.action == FaultAction::kReadFlip) flip(ranges);
  }
  std::uint64_t size_bytes(const ObjectName& name) override { return passed("size_bytes").size_bytes(name); }
  bool exists(const ObjectName& name) override { return passed("exists").exists(name); }
  bool is_taken(const ObjectName& name) override { return passed("exists").is_taken(name); }
  std::vector<ObjectInfo> list(const ObjectName& prefix) override { return passed("list").list(prefix); }
  std::vector<ObjectName> children() override { return passed("children").children(); }
  void remove(const ObjectName& name) override { passed("remove").remove(name); }
  void begin_attempt(const std::string& save_id) override { passed("begin_attempt").begin_attempt(save_id); }
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override {
    passed("publish").publish(save_id, record, overwrite);
  }
  void fence(const std::string& save_id) override { passed("fence").fence(save_id); }
  std::vector<std::string> open_attempts() override { return passed("open_attempts").open_attempts(); }
  std::vector<std::string> fenced_attempts() override { return passed("fenced_attempts").fenced_attempts(); }
  bool has_attempt(const std::string& save_id) override { return inner_->has_attempt(save_id); }
  void clear_attempt(const std::string& save_id) override { passed("clear_attempt").clear_attempt(save_id); }
  void retract() override { passed("retract").retract(); }
  bool leads_elsewhere() override { return inner_->leads_elsewhere(); }
  void remove_root() override { passed("remove_root").remove_root(); }

 private:
  Store& passed(const char* operation) {
    pass(*injector_, operation, url_);
    return *inner_;
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

  const std::shared_ptr<Store> inner_;
  const std::shared_ptr<Injector> injector_;
  const std::string url_;
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

}  // namespace cairn
