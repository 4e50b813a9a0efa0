// Saves that copy the state through a ring of bounded memory while writing.
#include <cairn/tests/support/torch.hpp>
//
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/checkpoints/async_hooks.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

constexpr std::uint64_t kBlockBytes = kChecksumBlockBytes;

AsyncSaveOptions streaming(std::uint64_t blocks) {
  AsyncSaveOptions options;
  options.staging.stream = true;
  options.staging.stream_bytes_max = blocks * kBlockBytes;
  return options;
}

SaveOptions small_blocks(unsigned threads = 2) {
  SaveOptions options;
  options.writer.block_bytes = kBlockBytes;
  options.writer.threads = threads;
  return options;
}

// Returns tensors of all kinds, different on each rank and larger than a ring of a few blocks.
StateDict large_state(double start, int rank = 0) {
  const torch::Tensor numbers = counting({600, 500}, start + rank);  // nine blocks
  return {{"own", per_rank(Dict{{"large", numbers},
                                {"transposed", numbers.clone().t()},
                                {"every_third", counting({90000}, start + rank).slice(0, 0, 90000, 3)},
                                {"complex", torch::complex(counting({300, 100}, start), counting({300, 100}, rank)).conj()},
                                {"negated", counting({300, 100}, start + rank)._neg_view()},
                                {"scalar", torch::tensor(start)},
                                {"none", torch::empty({0, 4})}})},
          {"whole", counting({70, 1000}, start)},
          {"name", "state " + std::to_string(static_cast<int>(start))}};
}

void overwrite(StateDict& state) {
  for (auto& item : state.at("own").dict()) torch::Tensor(item.second.tensor()).fill_(-1);
  torch::Tensor(state.at("whole").tensor()).fill_(-1);
}

void check_loads(Checkpointer& checkpointer, const std::string& id, double start) {
  const int rank = checkpointer.world().rank();
  StateDict state = large_state(0, rank);
  checkpointer.load(state, id);
  const StateDict expected = large_state(start, rank);
  for (const auto& item : expected.at("own").dict()) {
    CAPTURE(item.first);
    CHECK(torch::equal(state.at("own")[item.first].tensor(), item.second.tensor()));
  }
  CHECK(torch::equal(state.at("whole").tensor(), expected.at("whole").tensor()));
  CHECK(state.at("name").to_text() == expected.at("name").to_text());
}

TEST_CASE("streaming: a stager of the user's streams a state whose unchanged tensors are taken over") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single());
  SaveOptions options = small_blocks();
  options.writer.reuse = Reuse::kDigest;
  AsyncSaveOptions streamed = streaming(2);
  streamed.stager = std::make_shared<StreamingStager>();
  for (int step = 0; step < 3; ++step) {
    const std::string id = directory.path() + "/step_" + std::to_string(step);
    checkpointer.async_save(large_state(1), id, options, streamed).result();
    check_loads(checkpointer, id, 1);
  }
}

TEST_CASE("streaming: saves the state at the time of the call, whatever the ring's size") {
  for (const int size : {1, 3}) {
    for (const std::uint64_t blocks : {1, 3, 64}) {
      CAPTURE(size);
      CAPTURE(blocks);
      ControlledRun controlled;
      on_all_ranks(size, [&](World& world) {
        Checkpointer checkpointer(world);
        const std::string id = controlled.run + "/step";
        for (int round = 1; round <= 3; ++round) {
          StateDict state = large_state(10.0 * round, world.rank());
          const auto saving = checkpointer.async_save(state, id, small_blocks(), streaming(blocks));
          CHECK(saving.staged());
          overwrite(state);
          saving.result();
          CHECK(saving.progress().staging_bytes <= blocks * kBlockBytes);
          CHECK(saving.progress().staging_bytes > 0);
          check_loads(checkpointer, id, 10.0 * round);
        }
      });
    }
  }
}

TEST_CASE_FIXTURE(ControlledRun, "streaming: a larger state is staged when its last block is in the ring") {
  Checkpointer checkpointer(World::single());
  control->close_gate();
  AsyncSaveOptions overlapped = streaming(4);
  overlapped.staging.block_on_staging = false;
  StateDict state = large_state(1);
  const auto saving = checkpointer.async_save(state, run + "/step", small_blocks(), overlapped);
  control->wait_for_writes(2);  // one per thread: neither thread can copy more
  CHECK_FALSE(saving.staged());
  CHECK_FALSE(saving.wait_staged(std::chrono::milliseconds(0)));
  CHECK(saving.progress().staging_bytes == 2 * kBlockBytes);  // more would not end the copying earlier
  control->open_gate();
  CHECK(saving.wait_staged());
  overwrite(state);
  saving.result();
  CHECK(saving.progress().staging_bytes == 4 * kBlockBytes);
  check_loads(checkpointer, run + "/step", 1);
  checkpointer.release();
  CHECK(saving.progress().staging_bytes == 0);
}

TEST_CASE("streaming: a store that fails while the ring is full fails the save everywhere") {
  for (const std::size_t failing : {0, 3, 5, 6}) {
    CAPTURE(failing);
    ControlledRun controlled;
    std::mutex mutex;
    std::size_t writes = 0;
    controlled.control->before = [&](const std::string& operation) {
      std::lock_guard lock(mutex);
      if (operation == "write_at" && writes++ == failing) throw StoreFault(operation);
    };
    on_all_ranks(2, [&](World& world) {
      Checkpointer checkpointer(world);
      StateDict state = large_state(1, world.rank());
      const auto failed = checkpointer.async_save(state, controlled.run + "/step", small_blocks(), streaming(3));
      CHECK(failed.staged());
      overwrite(state);
      const FailureMap failures = failures_of([&] { failed.result(); });
      REQUIRE(failures.size() == 1);
      CHECK(failures.begin()->second.what.find("planned fault of the store: write_at") != std::string::npos);
      checkpointer.async_save(large_state(2, world.rank()), controlled.run + "/step", small_blocks(), streaming(3)).result();
      check_loads(checkpointer, controlled.run + "/step", 2);
    });
  }
}

TEST_CASE_FIXTURE(ControlledRun, "streaming: a save that is cancelled while the ring is full ends") {
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const std::string id = run + "/step";
    checkpointer.save(large_state(1, world.rank()), id);
    const Cancellation cancellation;
    std::thread canceller;
    if (world.rank() == 0) {
      control->close_gate();
      canceller = std::thread([&] {
        control->wait_for_writes(4);
        cancellation.cancel("preempted");
        control->open_gate();
      });
    }
    StateDict state = large_state(2, world.rank());
    SaveOptions options = small_blocks();
    if (world.rank() == 0) options.cancellation = cancellation;
    const auto cancelled = checkpointer.async_save(state, id, options, streaming(2));
    CHECK(cancelled.staged());
    overwrite(state);
    const FailureMap failures = failures_of([&] { cancelled.result(); });
    if (canceller.joinable()) canceller.join();
    REQUIRE(ranks_of(failures) == std::set<int>{0});
    CHECK(failures.at(0).kind == FailureKind::kCancelled);
    check_loads(checkpointer, id, 1);
    checkpointer.async_save(large_state(3, world.rank()), id, small_blocks(), streaming(2)).result();
    check_loads(checkpointer, id, 3);
  });
}

TEST_CASE_FIXTURE(ControlledRun, "streaming: a failure before copying fails the save, and async_save returns") {
  Checkpointer checkpointer(World::single());
  const auto failed_with = [&](const StateDict& state, const AsyncSaveOptions& options) {
    const auto saving = checkpointer.async_save(state, run + "/step", small_blocks(), options);
    CHECK(saving.staged());
    const FailureMap failures = failures_of([&] { saving.result(); });
    REQUIRE(failures.size() == 1);
    return failures.at(0).code;
  };
  CHECK(failed_with({{"sparse", torch::eye(3).to_sparse()}}, streaming(2)) == ErrorCode::kUnsupported);
  AsyncSaveOptions tiny = streaming(1);
  tiny.staging.stream_bytes_max -= 1;
  CHECK(failed_with(large_state(1), tiny) == ErrorCode::kInvalidArgument);
}

TEST_CASE_FIXTURE(ControlledRun, "streaming: a save waits for its turn, and is staged then") {
  Checkpointer checkpointer(World::single());
  control->close_gate();
  const auto first = checkpointer.async_save(large_state(1), run + "/first", small_blocks(), streaming(64));
  AsyncSaveOptions replace = streaming(64);
  replace.while_in_flight = WhileInFlight::kReplace;
  std::thread opener([&] {
    control->wait_for_writes(1);
    control->open_gate();
  });
  StateDict state = large_state(2);
  const auto second = checkpointer.async_save(state, run + "/second", small_blocks(), replace);
  opener.join();
  CHECK(first.done());
  overwrite(state);
  second.result();
  check_loads(checkpointer, run + "/first", 1);
  check_loads(checkpointer, run + "/second", 2);
}

TEST_CASE_FIXTURE(ControlledRun, "streaming: the ring can be had ahead, and is used by the saves that follow") {
  Checkpointer checkpointer(World::single());
  checkpointer.prepare(large_state(0), streaming(3), small_blocks());
  const auto saving = checkpointer.async_save({}, run + "/empty", small_blocks(), streaming(3));
  CHECK(saving.progress().staging_bytes == 3 * kBlockBytes);
  saving.result();
}

// A user-defined writer that keeps the planner's tensors, or asks for one twice.
class KeepingWriter : public StorageWriter {
 public:
  void reset(const std::string&) override {}
  void set_up_storage_writer(const StorageContext&) override {}
  SavePlan prepare_local_plan(SavePlan plan) override { return plan; }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override { return plans; }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    for (const WriteItem& item : plan.items) {
      if (item.type == WriteItemType::kByteIO) continue;
      kept.push_back(std::get<torch::Tensor>(planner.resolve_data(plan, item)));
      sum += kept.back().sum().item<double>();
    }
    if (let_go) kept.clear();
    resolved.pass();
    if (again) planner.resolve_data(plan, plan.items.front());
    return ready_future(WriteResults{});
  }
  void finish(Metadata, std::vector<WriteResults>) override {}

  bool let_go = true;
  bool again = false;
  Gate resolved;
  std::vector<torch::Tensor> kept;
  double sum = 0;
};

TEST_CASE("streaming: a lent tensor reads like the user's, conjugated or negated") {
  TensorLeases leases(nullptr);
  const torch::Tensor complex = torch::complex(counting({3}), counting({3}, 5));
  for (const torch::Tensor& tensor : {complex.conj(), torch::imag(complex.conj()), complex.conj()._neg_view()})
    CHECK(torch::equal(leases.lend({}, {}, tensor).resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg()));
}

TEST_CASE("streaming: a user's writer has the tensors for as long as it holds them") {
  for (const bool lets_go : {true, false}) {
    CAPTURE(lets_go);
    Checkpointer checkpointer(World::single());
    const auto writer = std::make_shared<KeepingWriter>();
    writer->let_go = lets_go;
    SaveOptions options;
    options.storage_writer = writer;
    AsyncSaveOptions overlapped = streaming(4);
    overlapped.staging.block_on_staging = false;
    const torch::Tensor weight = counting({100});
    const auto saving = checkpointer.async_save({{"weight", weight}, {"bias", counting({3})}}, "nowhere", options, overlapped);
    writer->resolved.wait_until_reached();
    CHECK(saving.staged() == lets_go);
    writer->resolved.open();
    saving.result();
    CHECK(saving.staged());
    CHECK(writer->sum == 4950 + 3);
    // the tensors stay valid after the save as long as the writer holds them
    if (!lets_go) CHECK(torch::equal(writer->kept.front(), weight));
  }
}

TEST_CASE("streaming: a writer that asks again for a returned item fails the save") {
  Checkpointer checkpointer(World::single());
  const auto writer = std::make_shared<KeepingWriter>();
  writer->again = true;
  writer->resolved.open();
  SaveOptions options;
  options.storage_writer = writer;
  const auto saving = checkpointer.async_save({{"weight", counting({100})}}, "nowhere", options, streaming(4));
  const FailureMap failures = failures_of([&] { saving.result(); });
  CHECK(only_failure(failures, 0) == Saying{ErrorCode::kPrecondition, "asked for \"weight\" once more"});
}

}  // namespace
}  // namespace cairn::testing
