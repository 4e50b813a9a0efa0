// Replicas whose values differ between ranks.
#include <cairn/tests/support/torch.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>
#include <cairn/tracing/trace_directory.hpp>

namespace cairn::testing {
namespace {

// Rank `odd_rank` holds another value than all others, of which each rank writes some rows.
torch::Tensor replica(const World& world, int odd_rank) { return torch::full({64, 4}, world.rank() == odd_rank ? 2.0 : 1.0); }

SaveOptions checking(CheckReplicas check) {
  SaveOptions options;
  options.check_replicas = check;
  options.planning.global.split_above_bytes = 64;
  return options;
}

// Returns the first column of a saved tensor, as the sum of its rows' values.
double rows_of(const std::string& id) { return load_by_keys(id, {"w"}).at("w").tensor().select(1, 0).sum().item<double>(); }

std::size_t data_files_in(const std::string& directory) {
  std::size_t count = 0;
  if (!std::filesystem::exists(directory)) return 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) count += entry.path().extension() == ".distcp";
  return count;
}

TEST_CASE("replicas: kError fails every rank with one map before anything is written") {
  for (const int size : {2, 3}) {
    const TemporaryDirectory directory;
    const std::string id = directory.path() + "/step";
    std::mutex mutex;
    std::vector<FailureMap> maps;
    on_all_ranks(size, [&](World& world) {
      Checkpointer checkpointer(world);
      const StateDict state{{"w", replica(world, 1)}, {"same", torch::ones(4)}};
      try {
        checkpointer.save(state, id, checking(CheckReplicas::kError));
      } catch (const CheckpointException& failed) {
        CHECK(failed.committed() == Committed::kNo);
        const std::lock_guard lock(mutex);
        maps.push_back(failed.failures());
      }
      CHECK(data_files_in(id) == 0);
      checkpointer.save({{"w", replica(world, -1)}}, id, checking(CheckReplicas::kError));
    });
    REQUIRE(maps.size() == static_cast<std::size_t>(size));
    for (const FailureMap& map : maps) CHECK((map == maps[0]));
    REQUIRE(maps[0].size() == 1);
    const Failure& failure = maps[0].at(0);
    CHECK(failure.code == ErrorCode::kMismatch);
    const std::string wanted = size == 2 ? "'w' differs between ranks: rank 0 has one value, rank 1 another. "
                                         : "'w' differs between ranks: ranks 0, 2 have one value, rank 1 another. ";
    CHECK_MESSAGE(failure.what.find(wanted) != std::string::npos, failure.what);
  }
}

TEST_CASE("replicas: kWarn warns once, in log and trace, and saves the lowest rank's value whole") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step";
  const std::string traces = directory.path() + "/traces";
  const std::string difference = "'w' differs between ranks: ranks 0, 1 have one value, rank 2 another";
  const Environment environment({{"CAIRN_TRACE", traces}});
  const CapturedLog log;
  on_all_ranks(3, [&](World& world) {
    Checkpointer checkpointer(world);
    checkpointer.save({{"w", replica(world, 2)}}, id, checking(CheckReplicas::kWarn));
  });
  CHECK(times_in(log.text(), difference) == 1);
  CHECK(log.text().find("warning rank 0: ") == 0);
  CHECK(rows_of(id) == 64);
  std::size_t traced = 0;
  TraceDirectory found(traces);
  const Trace trace = found.read(found.attempts().at(0));
  for (const auto& [rank, events] : trace.events)
    for (const ObservedEvent& event : events) traced += times_in(std::string(event.text), difference);
  CHECK(traced == 1);
  const auto messages = match_messages(trace);
  const auto notices = diagnose(trace, messages, TraceClocks(trace, messages)).notices;
  CHECK(std::any_of(notices.begin(), notices.end(), [&](const TracedNotice& notice) { return notice.text == difference; }));
}

TEST_CASE("replicas: a save with a kept plan compares its own values") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step";
  const CapturedLog log;
  on_all_ranks(3, [&](World& world) {
    Checkpointer checkpointer(world);
    const auto save = [&](int odd_rank, CheckReplicas check) {
      // Not before every rank has the outcome: then all send their plans as digests.
      checkpointer.save({{"w", replica(world, odd_rank)}}, id, checking(check));
      return world.rank() == 0 ? rows_of(id) : 0.0;
    };
    save(-1, CheckReplicas::kWarn);
    save(-1, CheckReplicas::kWarn);
    const double first = save(0, CheckReplicas::kWarn);
    save(-1, CheckReplicas::kWarn);
    const double second = save(1, CheckReplicas::kWarn);
    if (world.rank() == 0) {
      CHECK(first == 128);
      CHECK(second == 64);
      CHECK(times_in(log.text(), "differs between ranks: rank 0 has one value, ranks 1, 2 another") == 1);
      CHECK(times_in(log.text(), "differs between ranks: ranks 0, 2 have one value, rank 1 another") == 1);
    }
    // A save that compares nothing has no use for the hashes of the last one.
    save(1, CheckReplicas::kOff);
  });
  CHECK(times_in(log.text(), "differs between ranks") == 2);
  CHECK(rows_of(id) > 64);  // rows of several ranks, as ever
}

TEST_CASE("replicas: parts that several ranks hold are compared") {
  const TemporaryDirectory directory;
  on_all_ranks(4, [&](World& world) {
    Checkpointer checkpointer(world);
    const auto tensor = ShardedTensor::distribute(replica(world, 3), DeviceMesh({2, 2}), {Replicate{}, Shard{0}}, world.rank());
    const Thrown thrown = thrown_by([&] {
      checkpointer.save({{"w", tensor}}, directory.path() + "/step", checking(CheckReplicas::kError));
    });
    CHECK(thrown.says("'w' differs between ranks: rank 1 has one value, rank 3 another"));
    // Each half of the ranks has a mesh of its own.
    const int first = world.rank() / 2 * 2;
    const DeviceMesh half({2}, {first, first + 1});
    const auto apart = ShardedTensor::distribute(replica(world, 3), half, {Shard{0}}, world.rank());
    const Thrown again = thrown_by([&] {
      checkpointer.save({{"w", apart}}, directory.path() + "/step", checking(CheckReplicas::kError));
    });
    CHECK(again.says("'w' differs between ranks: rank 1 has one value, rank 3 another"));
  });
}

TEST_CASE("replicas: an asynchronous save compares the staged state, not a later one") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    for (const int odd_rank : {1, -1, 1, -1}) {
      const std::string id = directory.path() + (odd_rank == 1 ? "/bad" : "/good");
      torch::Tensor weight = replica(world, odd_rank);
      const auto saving = checkpointer.async_save({{"w", weight}}, id, checking(CheckReplicas::kError));
      weight.fill_(world.rank());
      const Thrown thrown = thrown_by([&] { saving.result(); });
      CHECK(thrown.is_error == (odd_rank == 1));
      if (thrown.is_error) CHECK(thrown.says("rank 0 has one value, rank 1 another"));
    }
  });
  CHECK(data_files_in(directory.path() + "/bad") == 0);
  CHECK(rows_of(directory.path() + "/good") == 64);
}

TEST_CASE("replicas: a planner of the user's that hashes takes part, and saves what differs whole in any case") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step";
  const CapturedLog log;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const StateDict state{{"w", replica(world, 1)}};
    for (const bool hashes : {true, false}) {
      for (const auto check : {CheckReplicas::kError, CheckReplicas::kOff}) {
        SaveOptions options = checking(check);
        options.planning.hash_tensors = hashes;
        options.planner = std::make_shared<DefaultSavePlanner>(options.planning);
        const Thrown thrown = thrown_by([&] { checkpointer.save(state, id, options); });
        CHECK(thrown.is_error == (hashes && check == CheckReplicas::kError));
        if (thrown.is_error) CHECK(thrown.says("'w' differs between ranks"));
        if (world.rank() == 0 && !thrown.is_error) CHECK((rows_of(id) == 64) == hashes);
      }
    }
  });
  CHECK(log.text().find("differs between ranks") == std::string::npos);
}

TEST_CASE("replicas: values marked by per_rank may differ, and a rank alone compares nothing") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    checkpointer.save({{"mean", per_rank(replica(world, 1))}}, directory.path() + "/marked", checking(CheckReplicas::kError));
    SaveOptions alone = checking(CheckReplicas::kError);
    alone.no_dist = true;
    checkpointer.save({{"w", replica(world, 1)}}, directory.path() + "/alone_" + std::to_string(world.rank()), alone);
  });
}

TEST_CASE("replicas: ranks that differ in the option are told so") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const auto check = world.rank() == 0 ? CheckReplicas::kWarn : CheckReplicas::kError;
    const Thrown thrown = thrown_by([&] { checkpointer.save({}, directory.path() + "/step", checking(check)); });
    CHECK(thrown.says("mismatch"));
    CHECK(thrown.says("check_replicas"));
  });
}

}  // namespace
}  // namespace cairn::testing
