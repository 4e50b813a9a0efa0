// Asynchronous saves that fail, are cancelled, or are called at the wrong time: the results of
// their handles, and that no saved state is lost.
#include <cairn/tests/support/torch.hpp>
//
#include <sys/mman.h>

#include <filesystem>
#include <functional>
#include <future>
#include <set>
#include <thread>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/failure_cases.hpp>
#include <cairn/tests/support/generations.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

SaveOptions faulty(const FailOn& fail_on, const World& world) {
  SaveOptions options;
  options.storage_writer = std::make_shared<FaultyWriter>(fail_on, world.rank());
  return options;
}

FailureMap failures_in(const AsyncSaveResponse& saving) {
  try {
    saving.result();
  } catch (const CheckpointException& exception) {
    CHECK(exception.committed() == Committed::kNo);
    return exception.failures();
  }
  return {};
}

TEST_CASE("a failure before async_save returns is in every rank's handle") {
  struct Broken : Stateful {
    explicit Broken(bool is_broken) : broken(is_broken) {}
    Dict state_dict() override {
      if (broken) throw PlannedFault("planned fault in state_dict");
      return {{"value", 1}};
    }
    void load_state_dict(const Dict&) override {}
    const bool broken;
  };
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const std::string id = directory.path() + "/step";
    const bool last = world.rank() == 1;
    const auto described =
        failures_in(checkpointer.async_save({{"object", std::shared_ptr<Stateful>(std::make_shared<Broken>(last))}}, id));
    REQUIRE(ranks_of(described) == std::set<int>{1});
    CHECK(described.at(1).what == "state_dict() of \"object\": planned fault in state_dict");

    AsyncSaveOptions little;
    little.staging.bytes_max = last ? 100 : 0;
    const auto staged = failures_in(checkpointer.async_save(state_of(1, world), id, {}, little));
    CHECK(only_failure(staged, 1) == Saying{ErrorCode::kPrecondition, "StagingOptions::bytes_max"});

    // A tensor too large to copy: reserved address space of which no page is touched.
    const auto huge_bytes = std::size_t{1} << 46;
    StateDict huge = state_of(1, world);
    void* const space = last ? ::mmap(nullptr, huge_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : nullptr;
    if (last) {
      REQUIRE(space != MAP_FAILED);
      huge["huge"] = per_rank(Value(torch::from_blob(space, {static_cast<std::int64_t>(huge_bytes)}, torch::kUInt8)));
    }
    const auto without_memory = failures_in(checkpointer.async_save(huge, id));
    CHECK(only_failure(without_memory, 1) == Saying{ErrorCode::kUnavailable, "of host memory to stage a state"});
    huge = {};
    if (last) ::munmap(space, huge_bytes);

    // The ranks disagree on the checkpoint id.
    const auto mismatch = failures_in(checkpointer.async_save(state_of(1, world), last ? id : id + "_other"));
    CHECK_FALSE(mismatch.empty());

    checkpointer.async_save(state_of(2, world), id).result();
    CHECK(loaded_generation(checkpointer, id) == 2);
  });
}

TEST_CASE("an unread failure is thrown by the next save, which saves all the same") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const std::string id = directory.path() + "/step";
    const auto check_thrown = [&](const std::string& text, const std::function<void()>& call) {
      try {
        call();
        FAIL("nothing was thrown");
      } catch (const CheckpointException& exception) {
        check_map(exception.failures(), {{"write_data", {1}}});
        CHECK(std::string(exception.what()).find(text) != std::string::npos);
        CHECK(std::string(exception.what()).find("saving 'nowhere'") != std::string::npos);
      }
    };
    const auto fail_unread = [&] { checkpointer.async_save(state_of(1, world), "nowhere", faulty({{"write_data", {1}}}, world)); };

    fail_unread();
    check_thrown("has succeeded, but came across", [&] { checkpointer.save(state_of(2, world), id); });
    CHECK(loaded_generation(checkpointer, id) == 2);
    CHECK_NOTHROW(checkpointer.save(state_of(3, world), id));  // reported only once

    fail_unread();
    check_thrown("goes on in the background, but came across", [&] { checkpointer.async_save(state_of(4, world), id); });
    CHECK(loaded_generation(checkpointer, id) == 4);

    fail_unread();
    check_thrown("waiting for asynchronous saves came across", [&] { checkpointer.wait_for_saves(); });

    // A failure that the handle has reported is not reported again.
    check_map(failures_in(checkpointer.async_save(state_of(5, world), "nowhere", faulty({{"finish", {0}}}, world))),
              {{"finish", {0}}});
    AsyncSaveOptions told;
    std::promise<void> heard;
    told.on_done = [&](const std::exception_ptr& error) {
      CHECK_THROWS_AS(std::rethrow_exception(error), CheckpointException);
      heard.set_value();
    };
    checkpointer.async_save(state_of(5, world), "nowhere", faulty({{"finish", {0}}}, world), told);
    heard.get_future().wait();
    CHECK_NOTHROW(checkpointer.save(state_of(6, world), id));
  });
}

TEST_CASE("a destroyed checkpointer waits for its saves, then cancels them and logs that") {
  const CapturedLog log;
  const TemporaryDirectory directory;
  WorldOptions impatient;
  impatient.shutdown_deadline = milliseconds(0);
  const World world = World::single(impatient);
  const auto gate = std::make_shared<Gate>();
  const SaveOptions options = gated("write_data", gate);
  std::optional<AsyncSaveResponse> saving;
  {
    Checkpointer checkpointer(world);
    saving = checkpointer.async_save({{"step", 1}}, directory.path() + "/step", options);
    gate->wait_until_reached();
  }
  CHECK(log.text().find("has not ended in time, and is cancelled") != std::string::npos);
  CHECK(log.text().find("is left behind: a hook of its has not returned") != std::string::npos);
  gate->open();
  CHECK(failures_in(*saving).at(0).kind == FailureKind::kCancelled);
  CHECK_FALSE(std::filesystem::exists(directory.path() + "/step/.metadata"));
}

TEST_CASE("a world that is shut down ends its saves in flight, and takes no more") {
  const TemporaryDirectory directory;
  const World world = World::single();
  Checkpointer checkpointer(world);
  const auto gate = std::make_shared<Gate>();
  const SaveOptions options = gated("write_data", gate);
  const auto saving = checkpointer.async_save({{"step", 1}}, directory.path() + "/step", options);
  gate->wait_until_reached();
  std::thread closing([&] { CHECK(world.shutdown(std::chrono::minutes(1))); });
  gate->open();
  closing.join();
  CHECK(saving.wait());
  CHECK(saving.staged());
  CHECK(thrown_by([&] {
          checkpointer.async_save({{"step", 2}}, directory.path() + "/step");
        }) == Saying{ErrorCode::kPrecondition, "was shut down"});
  // It may have finished before the shutdown.
  for (const auto& [rank, failure] : failures_in(saving)) CHECK(failure.kind == FailureKind::kCancelled);
}

}  // namespace
}  // namespace cairn::testing
