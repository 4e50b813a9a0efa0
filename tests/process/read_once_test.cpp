// Ranks of one launch that pass on what they read, with the job's secret.
#include <atomic>
#include <fstream>
#include <memory>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

std::atomic<std::uint64_t> bytes_read{0};

class CountedStore final : public StoreDecorator {
 public:
  using StoreDecorator::StoreDecorator;

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    if (operation.object.find(".distcp") != std::string_view::npos && std::string_view(operation.name) == "read")
      bytes_read += operation.bytes;
    act();
  }
};

}  // namespace

TEST_CASE("read once: the ranks of a launch read a replicated state once from the store that they share") {
  register_store("counted", [](const std::string& url) { return std::make_shared<CountedStore>(open_store(url.substr(10))); });
  const std::string place = "counted://" + shared_directory() + "/step";
  const int rank = world().rank();
  Checkpointer checkpointer(world());
  const auto whole = torch::arange(2 << 20, torch::kFloat32);
  checkpointer.save({{"w", whole}}, place);
  for (const ReadOnce mode : {ReadOnce::kHost, ReadOnce::kWorld}) {
    bytes_read = 0;
    StateDict state{{"w", torch::zeros_like(whole)}};
    LoadOptions options;
    options.read_once = mode;
    checkpointer.load(state, place, options);
    CHECK(state.at("w").tensor().equal(whole));
    const auto path = [](int of) { return shared_directory() + "/bytes_" + std::to_string(of); };
    std::ofstream(path(rank)) << bytes_read;
    barrier();
    std::uint64_t sum = 0, own = 0;
    for (int other = 0; other < world().size(); ++other) {
      std::ifstream(path(other)) >> own;
      sum += own;
    }
    CHECK(sum <= 1.05 * static_cast<double>(whole.nbytes()));
    CHECK(bytes_read > 0);  // each rank reads a part
    barrier();
  }
}
