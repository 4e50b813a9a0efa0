// Several asynchronous saves in flight at once, and calls that wait for them.
#include <cairn/tests/support/torch.hpp>
//
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/failure_cases.hpp>
#include <cairn/tests/support/generations.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {
namespace {

AsyncSaveOptions with(WhileInFlight policy) {
  AsyncSaveOptions options;
  options.while_in_flight = policy;
  return options;
}

// Runs `body` on each of two ranks while a save of generation 1 is in flight and blocked before
// `write_data`.
using WithFirst = std::function<void(Checkpointer&, const std::string& id, const AsyncSaveResponse& first, Gate&)>;
void while_one_is_held(const WithFirst& body) {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const std::string id = directory.path() + "/step";
    const auto gate = std::make_shared<Gate>();
    const auto first = checkpointer.async_save(state_of(1, world), id, gated("write_data", gate));
    body(checkpointer, id, first, *gate);
  });
}

TEST_CASE("by default a save waits for the one before it, and so do save and load") {
  while_one_is_held([](Checkpointer& checkpointer, const std::string& id, const AsyncSaveResponse& first, Gate& gate) {
    const World& world = checkpointer.world();
    std::thread opener([&] {
      gate.wait_until_reached();
      gate.open();
    });
    const auto second = checkpointer.async_save(state_of(2, world), id);
    CHECK(first.done());
    checkpointer.save(state_of(3, world), id);
    CHECK(second.done());
    opener.join();
    const auto fourth = checkpointer.async_save(state_of(4, world), id);
    CHECK(loaded_generation(checkpointer, id) == 4);
    CHECK(fourth.done());
    CHECK_FALSE(first.result() == second.result());
  });
}

TEST_CASE("a save is refused on all ranks while one is in flight on any, when asked to") {
  while_one_is_held([](Checkpointer& checkpointer, const std::string& id, const AsyncSaveResponse& first, Gate& gate) {
    const World& world = checkpointer.world();
    const auto refused = checkpointer.async_save(state_of(2, world), id, {}, with(WhileInFlight::kRefuse));
    const FailureMap failures = failures_of([&] { refused.result(); });
    CHECK(ranks_of(failures) == std::set<int>{0, 1});
    for (const auto& [rank, failure] : failures) {
      CHECK(failure.code == ErrorCode::kPrecondition);
      CHECK(failure.what.find("has an asynchronous save in flight") != std::string::npos);
    }
    CHECK_FALSE(first.done());
    gate.open();
    first.result();
    CHECK(loaded_generation(checkpointer, id) == 1);
    checkpointer.async_save(state_of(3, world), id, {}, with(WhileInFlight::kRefuse)).result();
    CHECK(loaded_generation(checkpointer, id) == 3);
  });
}

TEST_CASE("a replacing save cancels only those that have not begun") {
  const TemporaryDirectory directory;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const std::string id = directory.path() + "/step";
    const auto replace = with(WhileInFlight::kReplace);
    const auto gate = std::make_shared<Gate>();
    const auto first = checkpointer.async_save(state_of(1, world), id + "_first", gated("write_data", gate), replace);
    std::vector<AsyncSaveResponse> replaced;
    for (int generation = 2; generation <= 5; ++generation) {
      replaced.push_back(checkpointer.async_save(state_of(generation, world), id, {}, replace));
      CHECK(replaced.back().staged());
      const auto step = replaced.back().progress().step;
      // another rank may have replaced it already
      CHECK((step == SaveProgress::Step::kQueued || step == SaveProgress::Step::kDone));
    }
    const auto last = checkpointer.async_save(state_of(6, world), id, {}, replace);
    CHECK_FALSE(first.done());
    for (const auto& save : replaced) {
      const FailureMap failures = failures_of([&] { save.result(); });
      CHECK_FALSE(failures.empty());
      for (const auto& [rank, failure] : failures) {
        CHECK(failure.kind == FailureKind::kCancelled);
        CHECK(failure.what.find("is saved in its place") != std::string::npos);
      }
    }
    gate->open();
    CHECK_NOTHROW(last.result());
    CHECK(first.done());
    CHECK_NOTHROW(first.result());
    CHECK(loaded_generation(checkpointer, id) == 6);
    CHECK(read_metadata(id + "_first").commit->sequence < read_metadata(id).commit->sequence);
    // Replaced saves are not reported as failures, and the checkpointer stays usable.
    CHECK(checkpointer.wait_for_saves());
    checkpointer.save(state_of(7, world), id);
    CHECK(loaded_generation(checkpointer, id) == 7);
  });
}

TEST_CASE("more saves than there are names for those in flight wait for the first one") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single());
  const std::string id = directory.path() + "/step";
  const auto gate = std::make_shared<Gate>();
  const auto first = checkpointer.async_save({{"step", 0}}, id, gated("write_data", gate), with(WhileInFlight::kReplace));
  for (int step = 1; step <= 15; ++step) checkpointer.async_save({{"step", step}}, id, {}, with(WhileInFlight::kReplace));
  CHECK_FALSE(first.done());
  std::thread opener([&] { gate->open(); });
  checkpointer.async_save({{"step", 16}}, id, {}, with(WhileInFlight::kReplace)).result();
  opener.join();
  CHECK(first.done());
  StateDict state{{"step", 0}};
  checkpointer.load(state, id);
  CHECK(state.at("step").to_int() == 16);
}

TEST_CASE("a forked child cannot wait for its parent's save, but sees an ended one") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single());
  const auto ended = checkpointer.async_save({{"step", 1}}, directory.path() + "/first");
  const std::string save_id = ended.result();
  const auto gate = std::make_shared<Gate>();
  const auto running = checkpointer.async_save({{"step", 2}}, directory.path() + "/second", gated("write_data", gate));
  gate->wait_until_reached();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool right = ended.done() && ended.wait() && ended.result() == save_id;
    const std::vector<std::function<void()>> waits = {[&] { running.result(); }, [&] { running.wait(); }, [&] { running.done(); },
                                                      [&] { running.wait(std::chrono::milliseconds(1)); }};
    for (const auto& wait : waits) {
      const Thrown thrown = thrown_by(wait);
      right = right && thrown.code == ErrorCode::kPrecondition && thrown.says("in a forked child process");
    }
    _exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  gate->open();
  running.result();
}

TEST_CASE("a process that was forked off cannot use the checkpointer") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single());
  checkpointer.async_save({{"step", 1}}, directory.path() + "/step").result();
  const pid_t child = fork();
  if (child == 0) {
    bool refused = thrown_by([&] {
                     checkpointer.async_save({{"step", 2}}, directory.path() + "/step");
                   }).code == ErrorCode::kPrecondition;
    const Thrown thrown = thrown_by([&] { checkpointer.save({{"step", 2}}, directory.path() + "/step"); });
    refused = refused && thrown.says("the parent of this forked process");
    {
      const Checkpointer gone = std::move(checkpointer);  // neither object waits for threads, which do not exist in the child
    }
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace cairn::testing
