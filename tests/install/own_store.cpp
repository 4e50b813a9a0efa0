// Runs the conformance suite over a store of its own, as a project outside the tree does.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include <cairn/storage/store.hpp>
#include <cairn/tests/storage/store_conformance.hpp>

namespace {

// Keeps everything in memory under another scheme.
class OwnStore : public cairn::Store {
 public:
  explicit OwnStore(std::string url) : url_(std::move(url)), inner_(cairn::open_store("mem" + url_.substr(url_.find("://")))) {}

  std::string url() const override { return url_; }
  bool is_shared() const override { return false; }
  void create_root() override { inner_->create_root(); }
  std::unique_ptr<cairn::ObjectWriter> create(const cairn::ObjectName& name, const cairn::CreateOptions& options) override {
    return inner_->create(name, options);
  }
  void read(const cairn::ObjectName& name, const std::vector<cairn::ReadRange>& ranges) override { inner_->read(name, ranges); }
  std::uint64_t size_bytes(const cairn::ObjectName& name) override { return inner_->size_bytes(name); }
  bool exists(const cairn::ObjectName& name) override { return inner_->exists(name); }
  std::vector<cairn::ObjectInfo> list(const cairn::ObjectName& prefix) override { return inner_->list(prefix); }
  void remove(const cairn::ObjectName& name) override { inner_->remove(name); }
  void begin_attempt(const std::string& save_id) override { inner_->begin_attempt(save_id); }
  void publish(const std::string& save_id, cairn::ByteSpan record, cairn::Overwrite overwrite) override {
    inner_->publish(save_id, record, overwrite);
  }
  void fence(const std::string& save_id) override { inner_->fence(save_id); }
  std::vector<std::string> open_attempts() override { return inner_->open_attempts(); }
  std::vector<std::string> fenced_attempts() override { return inner_->fenced_attempts(); }
  void clear_attempt(const std::string& save_id) override { inner_->clear_attempt(save_id); }

 private:
  const std::string url_;
  const std::shared_ptr<cairn::Store> inner_;
};

}  // namespace

TEST_CASE("a store of one's own keeps the contract") {
  static const bool registered = [] {
    cairn::register_store("own", [](const std::string& url) { return std::make_shared<OwnStore>(url); });
    return true;
  }();
  REQUIRE(registered);
  static int place = 0;  // the suite wants an empty one each time
  cairn::testing::check_store_conformance([] { return cairn::open_store("own://store/" + std::to_string(++place)); });
}
