// Loads in which ranks pass on what they read. The store counts the bytes.
#include <cairn/tests/support/torch.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

// The reads of data files through all stores of the scheme "counted".
struct Reads {
  std::atomic<std::uint64_t> bytes{0};
  std::function<void(const DecoratedOperation&)> before;  // may throw
};
Reads& reads() {
  static Reads all;
  return all;
}

class CountedStore final : public StoreDecorator {
 public:
  using StoreDecorator::StoreDecorator;
  // As a directory of a network file system: `auto` lets ranks pass on what they read.
  bool is_shared() const override { return true; }

 private:
  void around(const DecoratedOperation& operation, const std::function<void()>& act) override {
    if (std::string_view(operation.name) == "read" && operation.object.find(".distcp") != std::string_view::npos) {
      if (reads().before) reads().before(operation);
      reads().bytes += operation.bytes;
    }
    act();
  }
};

std::string counted(const std::string& path) {
  static const bool registered = [] {
    register_store("counted",
                   [](const std::string& url) { return std::make_shared<CountedStore>(open_store("mem://" + url.substr(10))); });
    return true;
  }();
  (void)registered;
  return "counted://" + path;
}

constexpr std::int64_t kRows = 512, kColumns = 1024;  // 2 MiB

StateDict replicated(bool empty = false) {
  const auto whole = torch::arange(kRows * kColumns, torch::kFloat32).reshape({kRows, kColumns});
  StateDict state{{"w", empty ? torch::zeros_like(whole) : whole},
                  {"half", empty ? torch::zeros({300000}, torch::kFloat16) : torch::arange(300000).to(torch::kFloat16)}};
  StateDict many;
  for (int i = 0; i < 50; ++i)
    many["v" + std::to_string(i)] = empty ? torch::zeros({100 + i}, torch::kInt64) : torch::arange(100 + i) + 7 * i;
  state["many"] = many;
  state["text"] = empty ? std::string() : std::string(5000, 'x');
  state["step"] = empty ? 0 : 41;
  return state;
}

bool is_loaded(const StateDict& state) {
  const StateDict want = replicated();
  for (const std::string key : {"w", "half"})
    if (!state.at(key).tensor().equal(want.at(key).tensor())) return false;
  for (int i = 0; i < 50; ++i) {
    const std::string key = "v" + std::to_string(i);
    if (!state.at("many").dict().at(key).tensor().equal(want.at("many").dict().at(key).tensor())) return false;
  }
  return state.at("text").to_text() == std::string(5000, 'x') && state.at("step").to_int() == 41;
}

void save_replicated(const std::string& place, int size, int zstd_level = 0) {
  on_all_ranks(size, [&](World& world) {
    SaveOptions options;
    options.writer.zstd_level = zstd_level;
    options.planning.global.split_above_bytes = 512 * 1024;
    Checkpointer(world).save(replicated(), place, options);
  });
}

// Loads on `size` ranks, and returns the bytes read from data files.
std::uint64_t load_on(int size, const std::string& place, const LoadOptions& options, bool shall_fail = false) {
  reads().bytes = 0;
  on_all_ranks(size, [&](World& world) {
    StateDict state = replicated(true);
    if (shall_fail) {
      CHECK_THROWS_AS(Checkpointer(world).load(state, place, options), CheckpointException);
      return;
    }
    Checkpointer(world).load(state, place, options);
    CHECK(is_loaded(state));
  });
  return reads().bytes;
}

LoadOptions reading(ReadOnce mode) {
  LoadOptions options;
  options.read_once = mode;
  return options;
}

TEST_CASE("read once: a replicated state is read once by 2 to 8 ranks, whoever saved it") {
  for (const int savers : {1, 3}) {
    const std::string place = counted("once/saved_by_" + std::to_string(savers));
    save_replicated(place, savers);
    const std::uint64_t once = load_on(1, place, {});
    CHECK(load_on(4, place, reading(ReadOnce::kOff)) > 3.9 * once);
    for (const int size : {2, 4, 8})
      for (const ReadOnce mode : {ReadOnce::kAuto, ReadOnce::kHost, ReadOnce::kWorld}) {
        CAPTURE(size);
        CHECK(load_on(size, place, reading(mode)) <= 1.05 * once);
      }
  }
}

TEST_CASE("read once: without checks of checksums too, and with checks before any change nothing is shared") {
  const std::string place = counted("once/checks");
  save_replicated(place, 2);
  const std::uint64_t once = load_on(1, place, {});
  LoadOptions options = reading(ReadOnce::kWorld);
  options.reader.verify = false;
  CHECK(load_on(4, place, options) <= 1.05 * once);
  options.reader.verify_first = true;
  CHECK(load_on(2, place, options) > 3.9 * once);
}

TEST_CASE("read once: compressed values are read once") {
  const std::string place = counted("once/compressed");
  save_replicated(place, 2, 1);
  const std::uint64_t once = load_on(1, place, {});
  for (const int size : {2, 4}) CHECK(load_on(size, place, reading(ReadOnce::kWorld)) <= 1.05 * once);
}

TEST_CASE("read once: the columns of a matrix over all ranks are read once") {
  const std::string place = counted("once/columns");
  save_replicated(place, 2);
  for (const int size : {2, 4, 8}) {
    reads().bytes = 0;
    on_all_ranks(size, [&](World& world) {
      const std::int64_t width = kColumns / size;
      const auto part = torch::zeros({kRows, width});
      StateDict state{{"w", ShardedTensor({kRows, kColumns}, DType::kFloat32, {{part, {0, world.rank() * width}}})}};
      Checkpointer(world).load(state, place, reading(ReadOnce::kWorld));
      const auto want = torch::arange(kRows * kColumns, torch::kFloat32).reshape({kRows, kColumns});
      CHECK(part.equal(want.narrow(1, world.rank() * width, width)));
    });
    CHECK(reads().bytes <= 1.05 * kRows * kColumns * 4 + 2 * 128 * 1024);
  }
}

TEST_CASE("read once: bytes agree for every pair of world sizes and layouts") {
  for (const int saved : {1, 3})
    for (const auto& from : layout_names()) {
      const std::string place = counted("once/layouts/" + std::to_string(saved) + from);
      on_all_ranks(saved, [&](World& world) { Checkpointer(world).save(state_in_layout(from, world.rank(), saved), place); });
      for (const int size : {2, 3})
        on_all_ranks(size, [&](World& world) {
          Checkpointer checkpointer(world);
          for (const auto& to : layout_names()) {
            StateDict state = state_in_layout(to, world.rank(), size, true);
            checkpointer.load(state, place, reading(ReadOnce::kWorld));
            CHECK_MESSAGE(holds_expected(state, to, world.rank(), size),
                          "saved by " << saved << " as " << from << ", loaded as " << to);
          }
        });
    }
}

TEST_CASE("read once: a reader's error is in every map, as its own failure alone") {
  const std::string place = counted("once/error");
  save_replicated(place, 1);
  // The first read of many bytes is of a reader: the others wait for it.
  std::atomic<int> left{1};
  reads().before = [&](const DecoratedOperation& operation) {
    if (operation.bytes > 100000 && left-- == 1) throw Error(ErrorCode::kUnavailable, "the disk is gone");
  };
  std::mutex mutex;
  std::vector<FailureMap> maps;
  on_all_ranks(4, [&](World& world) {
    StateDict state = replicated(true);
    try {
      Checkpointer(world).load(state, place, reading(ReadOnce::kWorld));
    } catch (const CheckpointException& failed) {
      const std::lock_guard lock(mutex);
      maps.push_back(failed.failures());
    }
  });
  reads().before = nullptr;
  REQUIRE(maps.size() == 4);
  for (const FailureMap& map : maps) CHECK((map == maps[0]));
  REQUIRE(maps[0].size() == 1);
  CHECK(maps[0].begin()->second.what.find("the disk is gone") != std::string::npos);
  // The next load works.
  const std::uint64_t once = load_on(1, place, {});
  CHECK(load_on(4, place, reading(ReadOnce::kWorld)) <= 1.05 * once);
}

TEST_CASE("read once: a load of the default options from memory or a local disk shares nothing") {
  const TemporaryDirectory directory;
  save_replicated(directory.path() + "/step", 2);
  on_all_ranks(2, [&](World& world) {
    StateDict state = replicated(true);
    Checkpointer checkpointer(world);
    checkpointer.load(state, directory.path() + "/step");
    CHECK(is_loaded(state));
    if (world.rank() == 0) CHECK(world.dump_trace().find("read_once: off") != std::string::npos);
    checkpointer.load(state, directory.path() + "/step", reading(ReadOnce::kHost));
    if (world.rank() == 0) CHECK(world.dump_trace().find("read_once: host, of ") != std::string::npos);
  });
}

}  // namespace
}  // namespace cairn::testing
