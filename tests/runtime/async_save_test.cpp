// Asynchronous saves: which state they save, on which thread each part runs, and in which order
// they publish.
#include <cairn/tests/support/torch.hpp>
//
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/controlled_run.hpp>
#include <cairn/tests/support/failure_cases.hpp>
#include <cairn/tests/support/generations.hpp>
#include <cairn/tests/support/held_writer.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

// Simulates further training: overwrites every tensor in place.
void train_on(StateDict& state) {
  state.at("replicated").tensor().fill_(-1);
  for (const auto& shard : state.at("sharded").sharded().local_shards()) torch::Tensor(shard.tensor).fill_(-1);
  state["generation"] = -1;
}

TEST_CASE_FIXTURE(LeakCheck, "what is saved is the state at the time of the call, with and without kept memory") {
  for (const int size : {1, 4}) {
    for (const bool cached : {false, true}) {
      CAPTURE(size);
      CAPTURE(cached);
      const TemporaryDirectory directory;
      on_all_ranks(size, [&](World& world) {
        Checkpointer checkpointer(world);
        AsyncSaveOptions async;
        async.staging.cache_staged_state_dict = cached;
        for (int generation = 1; generation <= 3; ++generation) {
          const auto gate = std::make_shared<Gate>();
          StateDict state = state_of(generation, world);
          const AsyncSaveResponse saving =
              checkpointer.async_save(state, directory.path() + "/step", gated("write_data", gate), async);
          CHECK(saving.staged());
          CHECK_FALSE(saving.done());
          CHECK_FALSE(saving.wait(milliseconds(0)));
          CHECK(saving.progress().staging_bytes >= 400 + 1600 / static_cast<unsigned>(size));
          train_on(state);
          gate->open();
          CHECK(saving.wait());
          CHECK_FALSE(saving.result().empty());
          CHECK(saving.result() == saving.result());  // may be called repeatedly
          CHECK(loaded_generation(checkpointer, directory.path() + "/step") == generation);
        }
        checkpointer.release();
        CHECK(checkpointer.async_save({}, directory.path() + "/empty", {}, async).progress().staging_bytes == 0);
      });
    }
  }
}

TEST_CASE("the backends of a world say whether it has one for the CPU") {
  WorldOptions options;
  const std::map<std::string, bool> has_cpu{
      {"nccl", false}, {"cuda:nccl", false}, {"", true}, {"gloo", true}, {"cpu:gloo,cuda:nccl", true}};
  for (const auto& [backends, expected] : has_cpu) {
    options.backends = backends;
    CHECK(World::single(options).has_backend_for("cpu") == expected);
  }
  for (const char* wrong : {"cpu:", ":nccl", "gloo,nccl", "cpu:gloo,cpu:mpi", "cpu:gloo,"}) {
    CAPTURE(wrong);
    options.backends = wrong;
    CHECK(thrown_by([&] { World::single(options); }).code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("overlapped staging returns at once; the state may be changed after wait_staged") {
  // Blocks between the two steps of staging.
  struct Stager : AsyncStager {
    struct Held : Staging {
      Held(std::unique_ptr<Staging> of, std::shared_ptr<Gate> at) : inner(std::move(of)), gate(std::move(at)) {}
      StateDict finish() override {
        gate->pass();
        return inner->finish();
      }
      std::unique_ptr<Staging> inner;
      std::shared_ptr<Gate> gate;
    };
    std::unique_ptr<Staging> begin(const StateDict& state) override { return std::make_unique<Held>(inner.begin(state), gate); }
    std::uint64_t bytes_held() const override { return inner.bytes_held(); }
    DefaultStager inner;
    std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  };
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    AsyncSaveOptions async;
    async.staging.block_on_staging = false;
    const auto stager = std::make_shared<Stager>();
    async.stager = stager;
    StateDict state = state_of(1, world);
    const auto saving = checkpointer.async_save(state, directory.path() + "/step", {}, async);
    CHECK_FALSE(saving.staged());
    CHECK_FALSE(saving.wait_staged(milliseconds(0)));
    CHECK(saving.progress().step == SaveProgress::Step::kStaging);
    CHECK(saving.progress().staging_bytes > 0);
    stager->gate->open();
    CHECK(saving.wait_staged());
    train_on(state);
    saving.result();
    CHECK(saving.staged());
    CHECK(loaded_generation(checkpointer, directory.path() + "/step") == 1);

    // Cancels the save before the copy is complete.
    stager->gate = std::make_shared<Gate>();
    const auto cancelled = checkpointer.async_save(state_of(2, world), directory.path() + "/step", {}, async);
    if (world.rank() == 0) cancelled.cancel("preempted");
    stager->gate->open();
    const FailureMap preempted = failures_of([&] { cancelled.result(); });
    REQUIRE(ranks_of(preempted) == std::set<int>{0});
    CHECK(preempted.at(0).kind == FailureKind::kCancelled);
    CHECK(cancelled.staged());
    CHECK(loaded_generation(checkpointer, directory.path() + "/step") == 1);

    // If a tensor is resized during staging, the save fails on all ranks.
    stager->gate = std::make_shared<Gate>();
    StateDict changing = state_of(2, world);
    const auto failing = checkpointer.async_save(changing, directory.path() + "/step", {}, async);
    if (world.rank() == 1) changing.at("replicated").tensor().resize_({1000});
    stager->gate->open();
    const FailureMap resized = failures_of([&] { failing.result(); });
    CHECK(only_failure(resized, 1) == Saying{ErrorCode::kPrecondition, "\"replicated\" was resized"});
    CHECK(loaded_generation(checkpointer, directory.path() + "/step") == 1);
  });
}

TEST_CASE("progress counts what the writer has taken") {
  Checkpointer checkpointer(World::single());
  const auto writer = std::make_shared<HeldWriter>(0);
  SaveOptions options;
  options.storage_writer = writer;
  const auto saving = checkpointer.async_save({{"a", counting({10})}, {"b", counting({30})}}, "nowhere", options);
  writer->gate.wait_until_reached();
  const SaveProgress half = saving.progress();
  CHECK(half.step == SaveProgress::Step::kWriting);
  CHECK(half.items == 2);
  CHECK(half.items_done == 1);
  CHECK(half.bytes == 160);
  CHECK(half.bytes_done == 40);
  CHECK(half.bytes_per_second > 0);
  CHECK(half.left.has_value());
  writer->gate.open();
  saving.result();
  const SaveProgress whole = saving.progress();
  CHECK(whole.step == SaveProgress::Step::kDone);
  CHECK(whole.items_done == 2);
  CHECK(whole.bytes_done == 160);
  CHECK(whole.staging_bytes == 0);
}

TEST_CASE("staging memory is made anew, and logged, when the state changes shape") {
  const CapturedLog log(LogLevel::kDebug);
  const TemporaryDirectory directory;
  const World world = World::single();
  Checkpointer checkpointer(world);
  AsyncSaveOptions async;
  async.staging.cache_staged_state_dict = true;
  checkpointer.prepare({{"weight", counting({10})}}, async);
  for (int i = 0; i < 2; ++i) checkpointer.async_save({{"weight", counting({10})}}, directory.path() + "/step", {}, async).result();
  CHECK(world.dump_trace().find("staging memory is made anew") == std::string::npos);
  checkpointer.async_save({{"weight", counting({11})}}, directory.path() + "/step", {}, async).result();
  CHECK(world.dump_trace().find("staging memory is made anew") != std::string::npos);
  CHECK(log.text().find("debug rank 0: staging memory is made anew by checkpointer 'main'\n") != std::string::npos);
}

int niceness() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

TEST_CASE_FIXTURE(ControlledRun, "low priority applies to the writing threads only") {
  const int before = niceness();
  std::atomic<int> writing{-1}, publishing{-1};
  control->before = [&](const std::string& operation) {
    if (operation == "write_at") writing = niceness();
    if (operation == "publish") publishing = niceness();
  };
  Checkpointer checkpointer(World::single());
  for (const bool low : {false, true}) {
    AsyncSaveOptions async;
    async.low_priority = low;
    checkpointer.async_save({{"weight", counting({10})}}, run + "/step", {}, async).result();
    CHECK(writing == (low ? 19 : before));
    CHECK(publishing == before);
    CHECK(niceness() == before);
  }
}

TEST_CASE("the free function saves by a checkpointer that its handle keeps") {
  const TemporaryDirectory directory;
  const auto gate = std::make_shared<Gate>();
  const World world = World::single();
  SaveOptions options = gated("write_data", gate);
  options.world = world;
  {
    const AsyncSaveResponse saving = async_save({{"step", 3}}, directory.path() + "/step", options);
    gate->open();
  }
  StateDict state{{"step", 0}};
  load(state, directory.path() + "/step");
  CHECK(state.at("step").to_int() == 3);
}

}  // namespace
}  // namespace cairn::testing
