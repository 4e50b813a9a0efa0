// Users' mistakes, and checkpoints that are damaged between calls. Every rank gets a typed error,
// and nothing is lost or leaked.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string_view>

#include <cairn/tests/support/torch.hpp>  // before the headers that use doctest

#include <cairn/base/save_id.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/storage/engine/rank_streams.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/wrapped_store.hpp>

using namespace cairn;
using namespace cairn::testing;
namespace fs = std::filesystem;

namespace {

constexpr int kRanks = 2;

using Action = std::function<void(Checkpointer&, int rank)>;

// Runs `action` on every rank. Checks that all ranks get the same failure map, that one of its
// failures has `code`, and that the error text contains all of `words`.
void expect_failure(const Action& action, ErrorCode code, const std::vector<std::string>& words) {
  const LeakCheck nothing_left_behind;
  std::mutex mutex;
  std::vector<FailureMap> maps;
  std::string text;
  on_all_ranks(kRanks, [&](World& world) {
    Checkpointer checkpointer(world);
    try {
      action(checkpointer, world.rank());
    } catch (const CheckpointException& exception) {
      std::lock_guard lock(mutex);
      maps.push_back(exception.failures());
      text = exception.what();
    }
  });
  REQUIRE_MESSAGE(maps.size() == kRanks, "every rank throws a CheckpointException");
  CHECK((maps[0] == maps[1]));
  bool found = false;
  for (const auto& entry : maps[0]) found = found || entry.second.code == code;
  CHECK_MESSAGE(found, "no failure has the code " << std::string(to_string(code)) << ":\n" << text);
  for (const auto& word : words) CHECK_MESSAGE(text.find(word) != std::string::npos, "'" << word << "' is not in:\n" << text);
}

StateDict simple_state(int rank) {
  return {{"weight", ShardedTensor::distribute(counting({64, 48}), over_all_ranks(kRanks), rank)}, {"step", 7}};
}

struct SavedCheckpoint {
  SavedCheckpoint() : id(directory.path() + "/step_7") {
    on_all_ranks(kRanks, [&](World& world) { Checkpointer(world).save(simple_state(world.rank()), id); });
  }
  Action loading() const {
    return [this](Checkpointer& checkpointer, int rank) {
      StateDict state = simple_state(rank);
      checkpointer.load(state, id);
    };
  }
  TemporaryDirectory directory;
  std::string id;
};

}  // namespace

TEST_CASE("bad input: options that differ are named with both values") {
  const TemporaryDirectory directory;
  const auto saving = [&](const std::function<void(SaveOptions&, int rank)>& choose) {
    return [&directory, choose](Checkpointer& checkpointer, int rank) {
      SaveOptions options;
      choose(options, rank);
      checkpointer.save(simple_state(rank), directory.path() + "/saved", options);
    };
  };
  expect_failure(saving([](SaveOptions& options, int rank) { options.step = 100 + rank; }), ErrorCode::kMismatch,
                 {R"("step 101" on rank 1, "step 100" on rank 0)"});
  expect_failure(saving([](SaveOptions& options, int rank) {
                   if (rank == 1) options.user_metadata["note"] = std::string(100, 'x') + "\n";
                 }),
                 ErrorCode::kMismatch, {"\"user_metadata key note\" on rank 1, \"own planner off\" on rank 0"});
  expect_failure(saving([](SaveOptions& options, int rank) {
                   options.user_metadata["note"] = std::string(100, 'x') + std::to_string(rank);
                 }),
                 ErrorCode::kMismatch, {"digests "});  // the values differ beyond what the text has
  const SavedCheckpoint saved;
  expect_failure(
      [&](Checkpointer& checkpointer, int rank) {
        StateDict state = simple_state(rank);
        LoadOptions options;
        options.planning.allow_dtype_cast = rank == 0;
        checkpointer.load(state, saved.id, options);
      },
      ErrorCode::kMismatch, {R"("allow_dtype_cast off" on rank 1, "allow_dtype_cast on" on rank 0)"});
}

TEST_CASE("bad input: no checkpoint, an empty directory, a half-written one") {
  const TemporaryDirectory directory;
  const auto loading = [](const std::string& id) {
    return [id](Checkpointer& checkpointer, int rank) {
      StateDict state = simple_state(rank);
      checkpointer.load(state, id);
    };
  };
  expect_failure(loading(directory.path() + "/missing"), ErrorCode::kNotFound, {"missing"});
  fs::create_directory(directory.path() + "/empty");
  expect_failure(loading(directory.path() + "/empty"), ErrorCode::kNotFound, {"empty"});
  fs::create_directories(directory.path() + "/half/.attempt-" + make_save_id(std::string(32, 'a'), "main", 1));
  expect_failure(loading(directory.path() + "/half"), ErrorCode::kNotFound, {"half"});
}

namespace {

// Storage that takes ids of its own kind only.
struct OwnIdsWriter : FaultyWriter {
  explicit OwnIdsWriter(bool any) : FaultyWriter({}, 0), takes_any(any) {}
  bool validate_checkpoint_id(const std::string& id) const override { return takes_any || id.rfind("own:", 0) == 0; }
  const bool takes_any;
};
struct OwnIdsReader : FaultyReader {
  OwnIdsReader(Metadata metadata, bool any) : FaultyReader(std::move(metadata), {}, 0), takes_any(any) {}
  bool validate_checkpoint_id(const std::string& id) const override { return takes_any || id.rfind("own:", 0) == 0; }
  const bool takes_any;
};

}  // namespace

TEST_CASE("bad input: an id that the writer or reader of one rank does not take") {
  for (const bool background : {false, true}) {
    CAPTURE(background);
    const auto save = [&](Checkpointer& checkpointer, int rank, const std::string& id) {
      const auto writer = std::make_shared<OwnIdsWriter>(rank == 0);
      SaveOptions options;
      options.storage_writer = writer;
      const auto check_hooks = [&] { CHECK(writer->faults.calls().empty() == (rank != 0 && id.rfind("own:", 0) != 0)); };
      try {
        if (background)
          checkpointer.async_save(simple_state(rank), id, options).result();
        else
          checkpointer.save(simple_state(rank), id, options);
      } catch (...) {
        check_hooks();  // none ran on the rank that refuses
        throw;
      }
      check_hooks();
    };
    expect_failure([&](Checkpointer& c, int rank) { save(c, rank, "other:x"); }, ErrorCode::kInvalidArgument,
                   {"other:x", "is not a checkpoint id", "rank 1"});
    on_all_ranks(kRanks, [&](World& world) {
      Checkpointer checkpointer(world);
      save(checkpointer, world.rank(), "own:x");
    });
  }
  const auto load = [&](Checkpointer& checkpointer, int rank, const std::string& id) {
    StateDict state = simple_state(rank);
    LoadOptions options;
    options.storage_reader = std::make_shared<OwnIdsReader>(create_default_metadata(simple_state(rank)), rank == 0);
    checkpointer.load(state, id, options);
  };
  expect_failure([&](Checkpointer& c, int rank) { load(c, rank, "other:x"); }, ErrorCode::kInvalidArgument,
                 {"other:x", "is not a checkpoint id", "rank 1"});
  on_all_ranks(kRanks, [&](World& world) {
    Checkpointer checkpointer(world);
    load(checkpointer, world.rank(), "own:x");
  });
}

TEST_CASE("bad input: all mismatches are reported at once, before a byte is changed") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step_7";
  on_all_ranks(kRanks, [&](World& world) {
    Checkpointer(world).save({{"a", torch::ones({2, 3})}, {"b", torch::ones({4}, torch::kInt64)}, {"good", torch::ones({2})}}, id);
  });
  std::vector<torch::Tensor> good{torch::zeros({2}), torch::zeros({2})};
  expect_failure(
      [&](Checkpointer& c, int rank) {
        StateDict state{{"a", torch::zeros({3, 3})},
                        {"b", torch::zeros({4}, torch::kFloat32)},
                        {"absent", torch::zeros({1})},
                        {"good", good[static_cast<std::size_t>(rank)]}};
        c.load(state, id);
      },
      ErrorCode::kMismatch, {"\"a\"", "\"b\"", "\"absent\"", "[2, 3]", "[3, 3]", "int64", "float32"});
  for (const auto& tensor : good) CHECK(torch::equal(tensor, torch::zeros({2})));
}

TEST_CASE("bad input: a load that fails on one rank changes no plain value on any") {
  const SavedCheckpoint saved;
  for (const auto& file : fs::directory_iterator(saved.id)) {
    if (file.path().filename().string().rfind("__1_", 0) != 0) continue;
    std::fstream part(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    const int first = part.get();
    part.seekp(0).put(static_cast<char>(first ^ 1));
  }
  std::vector<StateDict> states;
  for (int rank = 0; rank < kRanks; ++rank) states.push_back(simple_state(rank));
  for (StateDict& state : states) state["step"] = 3;
  expect_failure([&](Checkpointer& c, int rank) { c.load(states[static_cast<std::size_t>(rank)], saved.id); }, ErrorCode::kCorrupt,
                 {"rank 1 ", "\"weight\""});
  for (const StateDict& state : states) CHECK(state.at("step").to_int() == 3);
}

TEST_CASE("bad input: ranks that disagree on the id or the options") {
  const TemporaryDirectory directory;
  expect_failure([&](Checkpointer& c, int rank) { c.save(simple_state(rank), directory.path() + "/step_" + std::to_string(rank)); },
                 ErrorCode::kMismatch, {"step_0", "step_1"});
}

TEST_CASE("bad input: a negative step") {
  const TemporaryDirectory directory;
  SaveOptions options;
  options.step = -4;
  expect_failure([&](Checkpointer& c, int rank) { c.save(simple_state(rank), directory.path() + "/step", options); },
                 ErrorCode::kInvalidArgument, {"ranks 0, 1 ", "step is -4"});
  expect_failure([&](Checkpointer& c, int rank) { c.async_save(simple_state(rank), directory.path() + "/step", options).result(); },
                 ErrorCode::kInvalidArgument, {"ranks 0, 1 ", "step is -4"});
}

TEST_CASE("bad input: options of which no writer or reader can be made, on one rank") {
  const SavedCheckpoint saved;
  expect_failure(
      [&](Checkpointer& c, int rank) {
        SaveOptions options;
        if (rank == 1) options.writer.bytes_in_flight_max = 1;
        c.save(simple_state(rank), saved.id, options);
      },
      ErrorCode::kInvalidArgument, {"rank 1 ", "bytes_in_flight_max (1)"});
  expect_failure(
      [&](Checkpointer& c, int rank) {
        StateDict state = simple_state(rank);
        LoadOptions options;
        if (rank == 1) options.reader.bytes_in_flight_max = 1;
        c.load(state, saved.id, options);
      },
      ErrorCode::kInvalidArgument, {"rank 1 ", "bytes_in_flight_max (1)"});
}

TEST_CASE("bad input: a writer that throws while the threads that it has started use the plan") {
  const std::string own_data(1000, 'x');
  struct Planner : DefaultSavePlanner {
    explicit Planner(std::string data) : own_data(std::move(data)) {}
    SavePlan finish_plan(SavePlan new_plan) override {
      SavePlan plan = DefaultSavePlanner::finish_plan(std::move(new_plan));
      plan.planner_data = own_data;
      return plan;
    }
    ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override {
      until_abandoned.pass();
      if (plan.planner_data == own_data) ++intact;
      return DefaultSavePlanner::resolve_data(plan, item);
    }
    const std::string own_data;
    Gate until_abandoned;
    std::atomic<int> intact{0};
  };
  struct Writer : CheckpointWriter {
    explicit Writer(std::shared_ptr<Planner> planner) : held(std::move(planner)) {}
    Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
      CheckpointWriter::write_data(plan, planner);
      held->until_abandoned.wait_until_reached();
      throw PlannedFault("planned fault after the start");
    }
    void abandon() noexcept override {
      held->until_abandoned.open();
      CheckpointWriter::abandon();
    }
    const std::shared_ptr<Planner> held;
  };
  const TemporaryDirectory directory;
  expect_failure(
      [&](Checkpointer& c, int rank) {
        const auto planner = std::make_shared<Planner>(own_data);
        SaveOptions options;
        options.planner = planner;
        options.storage_writer = std::make_shared<Writer>(planner);
        if (rank != 1) {
          planner->until_abandoned.open();
          options.storage_writer = std::make_shared<CheckpointWriter>();
        }
        try {
          c.save({{"own", per_rank(counting({100}))}}, directory.path() + "/step", options);
        } catch (...) {
          if (rank == 1) CHECK(planner->intact == 1);
          throw;
        }
      },
      ErrorCode::kUnavailable, {"rank 1 ", "planned fault after the start"});
}

TEST_CASE("bad input: a reader stops when another rank has failed") {
  static std::atomic<int> reads{0};
  static Gate until_abandoned;
  register_around("held", "file", [](Store&, const DecoratedOperation& operation, const std::function<void()>& act) {
    if (std::string_view(operation.name) == "read" && operation.bytes > 1'000'000) {
      ++reads;
      until_abandoned.pass();
    }
    act();
  });
  // Nothing comes from the other rank.
  struct Streams : RankStreams {
    void send(std::uint32_t, ByteSpan) noexcept override {}
    void finish_sending() noexcept override {}
    void stop() noexcept override { until_abandoned.open(); }  // called once no further read begins
    void decline(std::uint32_t, const std::string&) noexcept override {}
    bool receive(std::uint32_t, MutableByteSpan) override { return false; }
    void finish_receiving(std::uint32_t) override {}
    void report() noexcept override {}
  };
  struct Reader : CheckpointReader {
    Reader(int on_rank, CheckpointReaderOptions with) : CheckpointReader(with), rank(on_rank) {
      share_reads(
          ReadOnce::kWorld, [] { return std::string("address"); }, [](const auto&) { return std::make_shared<Streams>(); });
    }
    Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override {
      if (rank == 0) return CheckpointReader::read_data(plan, planner);
      until_abandoned.wait_until_reached();
      throw PlannedFault("planned fault while another rank reads");
    }
    const int rank;
  };
  const TemporaryDirectory directory;
  expect_failure(
      [&](Checkpointer& c, int rank) {
        StateDict state{{"large", torch::zeros({8 << 20})}};
        c.save(state, directory.path() + "/step");
        LoadOptions options;
        options.reader.threads = 1;
        options.storage_reader = std::make_shared<Reader>(rank, options.reader);
        c.load(state, "held:" + directory.path() + "/step", options);
      },
      ErrorCode::kUnavailable, {"rank 1 ", "planned fault while another rank reads"});
  CHECK(reads < 4);  // of eight
}

TEST_CASE("bad input: values that differ between ranks under one key are refused") {
  const TemporaryDirectory directory;
  expect_failure(
      [&](Checkpointer& c, int rank) {
        c.save({{"seed", rank}}, directory.path() + "/step");
      },
      ErrorCode::kMismatch, {"'seed'"});
  on_all_ranks(kRanks, [&](World& world) {
    Checkpointer checkpointer(world);
    checkpointer.save({{"seed", per_rank(world.rank() + 40)}}, directory.path() + "/step");
    StateDict state{{"seed", per_rank(0)}};
    checkpointer.load(state, directory.path() + "/step");
    CHECK(state.at("seed").to_int() == world.rank() + 40);
  });
}
