// Loads in which ranks pass on what they read. The store counts the bytes.
#include <cairn/tests/support/torch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/links/data_stream.hpp>
#include <cairn/actors/links/socket_transport.hpp>
#include <cairn/actors/read_streams.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/counted_reads.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/laid_out_state.hpp>
#include <cairn/tests/support/no_threads.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

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
    const std::string place = counted("mem://once/saved_by_" + std::to_string(savers));
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
  const std::string place = counted("mem://once/checks");
  save_replicated(place, 2);
  const std::uint64_t once = load_on(1, place, {});
  LoadOptions options = reading(ReadOnce::kWorld);
  options.reader.verify = false;
  CHECK(load_on(4, place, options) <= 1.05 * once);
  options.reader.verify_first = true;
  CHECK(load_on(2, place, options) > 3.9 * once);
}

TEST_CASE("read once: compressed values are read once") {
  const std::string place = counted("mem://once/compressed");
  save_replicated(place, 2, 1);
  const std::uint64_t once = load_on(1, place, {});
  for (const int size : {2, 4}) CHECK(load_on(size, place, reading(ReadOnce::kWorld)) <= 1.05 * once);
}

TEST_CASE("read once: the columns of a matrix over all ranks are read once") {
  const std::string place = counted("mem://once/columns");
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

TEST_CASE("read once: without checks of checksums, ranks that need different columns or tensors get their own") {
  const std::string place = counted("mem://once/unchecked");
  constexpr int size = 3;
  const auto item = [](int i) { return torch::arange(1000) * (i + 1); };
  on_all_ranks(1, [&](World& world) {
    StateDict state = replicated();
    for (int i = 0; i < size; ++i) state["item" + std::to_string(i)] = item(i);
    Checkpointer(world).save(state, place);
  });
  LoadOptions options = reading(ReadOnce::kWorld);
  options.reader.verify = false;
  on_all_ranks(size, [&](World& world) {
    const std::int64_t width = kColumns / 4;
    const auto part = torch::zeros({kRows, width});
    StateDict columns{{"w", ShardedTensor({kRows, kColumns}, DType::kFloat32, {{part, {0, world.rank() * width}}})}};
    Checkpointer checkpointer(world);
    checkpointer.load(columns, place, options);
    const auto want = torch::arange(kRows * kColumns, torch::kFloat32).reshape({kRows, kColumns});
    CHECK(part.equal(want.narrow(1, world.rank() * width, width)));
    const std::string key = "item" + std::to_string(world.rank());
    StateDict one{{key, torch::zeros({1000}, torch::kInt64)}};
    checkpointer.load(one, place, options);
    CHECK(one.at(key).tensor().equal(item(world.rank())));
  });
}

TEST_CASE("read once: ranks that need different tensors of one file of PyTorch get their own") {
  const std::string place = CAIRN_TEST_DATA "/pytorch-2.11/single";
  const CapturedLog log;
  on_all_ranks(3, [&](World& world) {
    const std::string key = "model." + std::to_string(world.rank()) + ".weight";
    Checkpointer checkpointer(world);
    const auto load = [&](ReadOnce mode) {
      StateDict state{{key, torch::zeros({8 + world.rank(), 4})}};
      checkpointer.load(state, place, reading(mode));
      return state.at(key).tensor();
    };
    CHECK(load(ReadOnce::kWorld).equal(load(ReadOnce::kOff)));
  });
  CHECK(log.text() == "");
}

TEST_CASE("read once: to stop a load wakes the thread that waits for another rank's stream, and turns that rank away") {
  TransportConfig config;
  config.claim_deadline = std::chrono::hours(1);
  const std::shared_ptr<Transport> transport = make_transport(config);
  config.rank = 1;
  const std::unique_ptr<Transport> other = make_transport(config);
  auto shared = std::make_shared<SharedReads>();
  shared->ranges = {{{0, 0, 4}, 1, {}}};
  std::vector<std::string> said;
  auto streams = make_read_streams(transport, shared, std::chrono::hours(1), [&](const std::string& why) { said.push_back(why); });
  const auto other_load = std::make_shared<SharedReads>(*shared);
  other_load->stream = 1;
  auto declined = make_read_streams(transport, other_load, std::chrono::hours(1), [](const std::string&) {});
  std::thread receiver([&] {
    declined->decline(1, "a reason");
    char bytes[4];
    CHECK_THROWS_AS(streams->receive(1, {bytes, sizeof(bytes)}), ReaderFailed);
  });
  declined->stop();
  streams->stop();
  receiver.join();
  streams->report();
  CHECK(said.empty());
  const auto late = other->open(transport->address(), shared->stream);
  streams.reset();
  const auto declined_late = other->open(transport->address(), other_load->stream);
  declined.reset();
  try {
    late->finish();
    FAIL("the stream was received");
  } catch (const Error& error) {
    // The reason may be lost if the stream was just being opened.
    CHECK((error.code() == ErrorCode::kPrecondition || error.code() == ErrorCode::kUnavailable));
  }
}

// Cannot reach the ranks below `reachable`: `open` fails when a stream to another rank is open, or
// at the end of the time in which all must be.
class FrozenRanks final : public Transport {
 public:
  FrozenRanks(int reachable, std::chrono::milliseconds time) : reachable_(reachable), time_(time) {}
  const DataAddress& address() const override { return real_->address(); }
  std::shared_ptr<DataStream> open(const DataAddress& to, std::uint64_t stream) override {
    if (to.rank < reachable_) {
      std::unique_lock lock(mutex_);
      opened_.wait_for(lock, time_, [this] { return is_open_; });
      throw Error(ErrorCode::kDeadline, "its process is frozen");
    }
    auto opened = real_->open(to, stream);
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
    return opened;
  }
  std::shared_ptr<DataStream> receive(int from, std::uint64_t stream, std::chrono::nanoseconds deadline,
                                      const std::atomic<bool>* cancelled) override {
    return real_->receive(from, stream, deadline, cancelled);
  }
  void wake() noexcept override { real_->wake(); }

 private:
  const int reachable_;
  const std::chrono::milliseconds time_;
  const std::unique_ptr<Transport> real_ = make_transport({});
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

// Sends `bytes` to rank `to` of `shared`, and returns what that rank receives.
std::string sent_to(Transport& receiver, RankStreams& streams, int to, const std::string& bytes) {
  std::thread sender([&] {
    streams.send(static_cast<std::uint32_t>(to), {bytes.data(), bytes.size()});
    streams.finish_sending();
  });
  std::string received(bytes.size(), '?');
  try {
    const auto stream = receiver.receive(0, 0, std::chrono::seconds(10));
    received.resize(stream->receive({received.data(), received.size()}));
    char end = 0;
    CHECK(stream->receive({&end, 1}) == 0);
  } catch (const Error& error) {
    received = error.what();
  }
  sender.join();
  return received;
}

TEST_CASE("read once: ranks that cannot be reached do not keep the bytes from others") {
  constexpr int frozen = 40;
  constexpr auto deadline = std::chrono::seconds(5);
  TransportConfig config;
  config.rank = frozen + 1;
  const std::unique_ptr<Transport> receiver = make_transport(config);
  auto shared = std::make_shared<SharedReads>();
  for (int rank = 1; rank <= frozen; ++rank) shared->addresses.emplace_back(rank, to_string(DataAddress{rank, "127.0.0.1:1", ""}));
  shared->addresses.emplace_back(config.rank, to_string(receiver->address()));
  std::vector<std::string> said;
  const auto streams = make_read_streams(std::make_shared<FrozenRanks>(config.rank, deadline), shared, deadline,
                                         [&](const std::string& why) { said.push_back(why); });
  CHECK(sent_to(*receiver, *streams, config.rank, "some bytes") == "some bytes");
  streams->report();
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("40 streams broke, the first: ") == 0);
}

TEST_CASE("read once: a rank that can start no thread sends its streams") {
  TransportConfig config;
  config.rank = 1;
  const std::unique_ptr<Transport> receiver = make_transport(config);
  const std::shared_ptr<Transport> transport = make_transport({});
  auto shared = std::make_shared<SharedReads>();
  shared->addresses = {{1, to_string(receiver->address())}};
  std::optional<NoThreads> no_threads(std::in_place);
  const auto streams = make_read_streams(transport, shared, std::chrono::hours(1), [](const std::string&) {});
  no_threads.reset();
  CHECK(sent_to(*receiver, *streams, 1, "some bytes") == "some bytes");
}

TEST_CASE("read once: ranks that can start no thread read for themselves, with a warning") {
  constexpr int size = 3;
  const std::string place = counted("mem://once/no_threads");
  save_replicated(place, 2);
  const std::uint64_t once = load_on(1, place, {});
  LoadOptions options = reading(ReadOnce::kWorld);
  options.reader.threads = 0;
  std::vector<World> worlds = World::in_process(size);
  const auto load = [&](World& world) {
    StateDict state = replicated(true);
    CHECK_NOTHROW(Checkpointer(world).load(state, place, options));
    CHECK(is_loaded(state));
  };
  // Returns the warnings. The other ranks plan nothing before rank 0 calls `load`.
  const auto warnings = [&](bool has_threads) {
    const CapturedLog log;
    std::vector<std::thread> others;
    for (int rank = 1; rank < size; ++rank) others.emplace_back([&, rank] { load(worlds[static_cast<std::size_t>(rank)]); });
    std::optional<NoThreads> no_threads;
    if (!has_threads) no_threads.emplace();
    load(worlds[0]);
    no_threads.reset();
    for (std::thread& other : others) other.join();
    return log.text();
  };
  CHECK(times_in(warnings(false), "no rank shares what it reads, because this rank cannot: ") == size);
  reads().bytes = 0;
  CHECK(warnings(true) == "");
  CHECK(reads().bytes <= 1.05 * once);
  reads().bytes = 0;
  const std::string said = warnings(false);
  CHECK(times_in(said, "streams broke, the first: ") == size);
  CHECK(times_in(said, "cannot start a thread: ") == size);
  CHECK(reads().bytes > 2.9 * once);
}

TEST_CASE("read once: a rank that sends more or fewer bytes than expected fails the load of the receiver") {
  const std::shared_ptr<Transport> transport = make_transport({});
  TransportConfig config;
  config.rank = 1;
  const std::unique_ptr<Transport> other = make_transport(config);
  auto shared = std::make_shared<SharedReads>();
  shared->ranges = {{{0, 0, 4}, 1, {}}};
  const auto error_of = [&](std::size_t sent) {
    ++shared->stream;
    const auto streams = make_read_streams(transport, shared, std::chrono::hours(1), [](const std::string&) {});
    const auto stream = other->open(transport->address(), shared->stream);
    std::thread sender([&, bytes = std::string(sent, 'x')] {
      try {
        stream->send({bytes.data(), bytes.size()});
        stream->finish();
      } catch (const Error&) {  // the receiver has failed
      }
    });
    ErrorCode code = ErrorCode::kInternal;
    try {
      char bytes[4];
      const bool has_come = streams->receive(1, {bytes, sizeof(bytes)});
      CHECK(has_come);
      streams->finish_receiving(1);
    } catch (const Error& error) {
      code = error.code();
    }
    streams->stop();
    sender.join();
    return code;
  };
  CHECK(error_of(3) == ErrorCode::kCorrupt);
  CHECK(error_of(5) == ErrorCode::kCorrupt);
  CHECK(error_of(4) == ErrorCode::kInternal);  // none
}

TEST_CASE("read once: bytes agree for every pair of world sizes and layouts") {
  for (const int saved : {1, 3})
    for (const auto& from : layout_names()) {
      const std::string place = counted("mem://once/layouts/" + std::to_string(saved) + from);
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

// Loads on `size` ranks, and returns the failures, which must be the same on all of them.
FailureMap failures_of_load(int size, const std::string& place) {
  std::mutex mutex;
  std::vector<FailureMap> maps;
  on_all_ranks(size, [&](World& world) {
    StateDict state = replicated(true);
    try {
      Checkpointer(world).load(state, place, reading(ReadOnce::kWorld));
    } catch (const CheckpointException& failed) {
      const std::lock_guard lock(mutex);
      maps.push_back(failed.failures());
    }
  });
  REQUIRE(maps.size() == static_cast<std::size_t>(size));
  for (const FailureMap& map : maps) CHECK((map == maps[0]));
  return maps[0];
}

TEST_CASE("read once: a reader's error is in every map, as its own failure alone") {
  const std::string place = counted("mem://once/error");
  save_replicated(place, 1);
  // The first read of many bytes is of a reader: the others wait for it.
  std::atomic<int> left{1};
  const CapturedLog log;
  reads().before = [&](const DecoratedOperation& operation) {
    if (operation.bytes > 100000 && left-- == 1) throw Error(ErrorCode::kUnavailable, "the disk is gone");
  };
  const FailureMap map = failures_of_load(4, place);
  reads().before = nullptr;
  CHECK(log.text().find("read") == std::string::npos);
  REQUIRE(map.size() == 1);
  CHECK(map.begin()->second.what.find("the disk is gone") != std::string::npos);
  // The next load works.
  const std::uint64_t once = load_on(1, place, {});
  CHECK(load_on(4, place, reading(ReadOnce::kWorld)) <= 1.05 * once);
}

TEST_CASE("read once: a block that its reader finds damaged comes from the other tier once, or fails the load") {
  const TemporaryDirectory directory;
  TierOptions tiers;
  tiers.near_url = directory.path() + "/near";
  tiers.far_url = directory.path() + "/far";
  register_tier("once", tiers);
  const std::string place = "tiered://once/run/step";
  save_replicated(place, 1);
  REQUIRE(wait_for_copies("tiered://once/run"));
  const auto damage = [&](const std::string& tier) {
    std::filesystem::path largest;
    for (const auto& entry : std::filesystem::directory_iterator(tier + "/run/step"))
      if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) largest = entry.path();
    std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(400'000);
    file.write("damage", 6);
    REQUIRE(file.good());
  };
  damage(tiers.near_url);
  {
    const CapturedLog log;
    load_on(4, place, reading(ReadOnce::kWorld));
    CHECK(times_in(log.text(), "is read instead") == 1);  // by the reader of the block
    CHECK(times_in(log.text(), "read_once") == 0);
  }
  damage(tiers.far_url);
  const CapturedLog log;
  const FailureMap map = failures_of_load(4, place);
  CHECK(map.size() == 1);
  CHECK(map.begin()->second.code == ErrorCode::kCorrupt);
  CHECK(map.begin()->second.what.find("the checksum does not match") != std::string::npos);
  CHECK(times_in(log.text(), "read_once") == 0);
  forget_tier("once");
}

TEST_CASE("read once: a load of the default options, or of auto from a local disk, shares nothing") {
  const TemporaryDirectory directory;
  save_replicated(directory.path() + "/step", 2);
  on_all_ranks(2, [&](World& world) {
    StateDict state = replicated(true);
    Checkpointer checkpointer(world);
    checkpointer.load(state, directory.path() + "/step");
    CHECK(is_loaded(state));
    checkpointer.load(state, directory.path() + "/step", reading(ReadOnce::kAuto));
    if (world.rank() == 0) CHECK(world.dump_trace().find("read_once: off") != std::string::npos);
    if (world.rank() == 0) CHECK(world.dump_trace().find("read_once: host") == std::string::npos);
    checkpointer.load(state, directory.path() + "/step", reading(ReadOnce::kHost));
    if (world.rank() == 0) CHECK(world.dump_trace().find("read_once: host, of ") != std::string::npos);
  });
}

}  // namespace
}  // namespace cairn::testing
