// Handles of asynchronous saves, staging, ring and engine under many threads. The actors are left
// out because CAF is not built with the thread sanitizer.
#include <cairn/tests/support/torch.hpp>
//
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/runtime/checkpoints/async_save.hpp>
#include <cairn/runtime/observation/call_failure.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/sample_state.hpp>

namespace cairn::testing {
namespace {

// Runs the calls of one rank: each call on its own thread, hook after hook on the call's executor.
class DirectRuntime {
 public:
  ~DirectRuntime() {
    for (std::thread& thread : threads_) thread.join();
  }

  std::uint64_t save(SaveCall call, std::function<void(CallResult)> done) {
    cancelled_ = false;
    ++saves_;
    threads_.emplace_back([this, call = std::move(call), done = std::move(done), save_id = local_save_id(saves_)] {
      CallResult outcome;
      outcome.save_id = save_id;
      try {
        make(call, save_id);
        outcome.committed = Committed::kYes;
      } catch (...) {
        auto failure = capture_failure(0, Phase::kWrite, "trainer", std::current_exception());
        if (cancelled_) failure.kind = FailureKind::kCancelled;
        outcome.failures.emplace(0, std::move(failure));
        on(call, [&] { call.hooks->abandon(); });
      }
      done(std::move(outcome));
    });
    return saves_;
  }
  void cancel() { cancelled_ = true; }

 private:
  void make(const SaveCall& call, const std::string& save_id) {
    StorageContext context;
    context.checkpoint_id = call.checkpoint_id;
    context.save_id = save_id;
    SavePlan plan;
    GlobalSavePlan global;
    Future<WriteResults> writing;
    const std::vector<std::function<void()>> hooks{
        [&] { call.hooks->reset(call.checkpoint_id); },
        [&] { call.begin({}); },
        [&] { call.hooks->set_up_planner(0, true); },
        [&] { call.hooks->set_up_storage_writer(context); },
        [&] { plan = call.hooks->prepare_local_plan(call.hooks->create_local_plan()); },
        [&] { global = call.hooks->create_global_plan({plan}); },
        [&] { plan = call.hooks->finish_plan(call.hooks->prepare_global_plan(std::move(global.plans)).at(0)); },
        [&] { writing = call.hooks->write_data(plan); }};
    for (const auto& hook : hooks) {
      if (cancelled_) throw Error(ErrorCode::kCancelled, "cancelled");
      on(call, hook);
    }
    // Waits for the last callback, as the actors do. Earlier callbacks belong to the save, which
    // must not end before they have run.
    const auto written = std::make_shared<Promise<bool>>();
    writing.on_ready([written](const Future<WriteResults>&) { written->set_value(true); });
    written->future().get();
    WriteResults results = writing.get();
    if (cancelled_) throw Error(ErrorCode::kCancelled, "cancelled");
    on(call, [&] { call.hooks->finish(std::move(global.metadata), {std::move(results)}); });
  }

  static void on(const SaveCall& call, const std::function<void()>& hook) {
    const auto ran = std::make_shared<Promise<bool>>();
    const Future<bool> future = ran->future();
    call.executor->post([&hook, ran] {
      try {
        hook();
      } catch (...) {
        return ran->set_exception(std::current_exception());
      }
      ran->set_value(true);
    });
    future.get();
  }

  std::atomic<bool> cancelled_{false};
  std::uint64_t saves_ = 0;
  std::vector<std::thread> threads_;
};

StateDict state_of_round(int round) {
  return {{"large", counting({400, 300}, round)}, {"transposed", counting({300, 100}, round).t()}, {"round", round}};
}

struct Mode {
  bool streams = false;
  bool overlaps = false;
  int zstd_level = 0;
};

TEST_CASE("handles: many threads ask, wait and cancel in every mode of staging") {
  for (const Mode mode : {Mode{false, false}, Mode{false, true}, Mode{true, false}, Mode{true, true}, Mode{false, true, 1},
                          Mode{true, false, 1}, Mode{true, true, 1}}) {
    if (mode.zstd_level > 0 && !why_not_undone({kZstdTransform}).empty()) continue;
    CAPTURE(mode.streams);
    CAPTURE(mode.overlaps);
    CAPTURE(mode.zstd_level);
    DirectRuntime runtime;
    AsyncSave::Parts parts;
    parts.start = [&](SaveCall call, std::function<void(CallResult)> done) {
      return runtime.save(std::move(call), std::move(done));
    };
    parts.end = [&](const std::string&, std::uint64_t, const std::string&) { runtime.cancel(); };
    parts.order = std::make_shared<SaveOrder>();
    parts.shown.checkpoint_id = "mem://handles/step";
    parts.planner = std::make_shared<DefaultSavePlanner>();
    CheckpointWriterOptions writing;
    writing.block_bytes = kChecksumBlockBytes;
    writing.bytes_in_flight_max = 2 * kChecksumBlockBytes;
    writing.copy_first = mode.streams;
    writing.zstd_level = mode.zstd_level;
    parts.writer = std::make_shared<CheckpointWriter>(writing);
    StagingOptions staging;
    staging.cache_staged_state_dict = true;
    if (mode.streams)
      parts.stager = std::make_shared<StreamingStager>();
    else
      parts.stager = std::make_shared<DefaultStager>(staging);
    parts.options.staging.block_on_staging = !mode.overlaps;

    int last_saved = -1;
    for (int round = 0; round < 8; ++round) {
      const bool cancels = round % 3 == 2;
      StateDict state = state_of_round(round);
      ++parts.number;
      const auto save = std::make_shared<AsyncSave>(parts);
      SaveCall call;
      call.checkpoint_id = parts.shown.checkpoint_id;
      save->begin(std::move(call), [&](const std::vector<std::string>&) { return state; });
      std::vector<std::thread> curious;
      for (int i = 0; i < 3; ++i)
        curious.emplace_back([&save, cancels, i] {
          if (cancels && i == 0) save->cancel("no more needed");
          while (!save->wait(std::chrono::milliseconds(0))) {
            save->staged();
            save->progress();
          }
          save->is_unread();
        });
      save->wait_staged(std::nullopt);
      for (const char* key : {"large", "transposed"}) torch::Tensor(state.at(key).tensor()).fill_(-1);
      try {
        save->result();
        last_saved = round;
      } catch (const CheckpointException& exception) {
        CAPTURE(std::string(exception.what()));
        CHECK(cancels);
        CHECK(exception.failures().at(0).kind == FailureKind::kCancelled);
      }
      for (std::thread& thread : curious) thread.join();
      save->join();
    }
    REQUIRE(last_saved >= 0);
    StateDict loaded = state_of_round(-5);
    load_locally(parts.shown.checkpoint_id, {&loaded}, [] { return std::make_unique<CheckpointReader>(); });
    CHECK(loaded.at("round").to_int() == last_saved);
    for (const char* key : {"large", "transposed"})
      CHECK(torch::equal(loaded.at(key).tensor(), state_of_round(last_saved).at(key).tensor()));
    forget_memory("handles");
  }
}

TEST_CASE("handles: a save whose beginning throws has ended when the call returns") {
  DirectRuntime runtime;
  AsyncSave::Parts parts;
  parts.start = [&](SaveCall call, std::function<void(CallResult)> done) { return runtime.save(std::move(call), std::move(done)); };
  int ends = 0;
  parts.end = [&](const std::string&, std::uint64_t, const std::string&) {
    if (ends++ == 0) throw std::bad_alloc();
    runtime.cancel();
  };
  parts.order = std::make_shared<SaveOrder>();
  parts.shown.checkpoint_id = "mem://handles/begins";
  parts.planner = std::make_shared<DefaultSavePlanner>();
  parts.writer = std::make_shared<CheckpointWriter>();
  parts.stager = std::make_shared<DefaultStager>();
  bool told = false;
  parts.options.on_done = [&](std::exception_ptr) { told = true; };
  parts.number = 1;
  Cancellation cancelled;  // set in advance, so that watching it ends the save at once
  cancelled.cancel("no longer needed");
  parts.cancellation = cancelled;
  const StateDict state = state_of_round(0);
  auto save = std::make_shared<AsyncSave>(parts);
  SaveCall call;
  call.checkpoint_id = parts.shown.checkpoint_id;
  CHECK_THROWS_AS(save->begin(std::move(call), [&](const std::vector<std::string>&) { return state; }), std::bad_alloc);
  CHECK(save->done());
  CHECK(ends == 2);
  CHECK_FALSE(told);
  save.reset();
  forget_memory("handles");
}

}  // namespace
}  // namespace cairn::testing
