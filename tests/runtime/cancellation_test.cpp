// Saves and loads that their callers cancel in each phase, in worlds of one, two and four ranks, on
// Cairn's own storage.
#include <cairn/tests/support/torch.hpp>
//
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/generations.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/watched_storage.hpp>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

// One rank of a world, and the failures of its calls.
struct Rank {
  Rank(World& of, std::string place) : world(of), id(std::move(place)), checkpointer(of) {}

  void save(int generation, const SaveOptions& options = {}) {
    note([&] { checkpointer.save(state_of(generation, world), id, options); });
  }
  void check_loads(int generation) { CHECK(loaded_generation(checkpointer, id) == generation); }
  void load(const LoadOptions& options) {
    StateDict state = state_of(0, world);
    note([&] { checkpointer.load(state, id, options); });
  }
  void note(const std::function<void()>& call) {
    try {
      call();
      heard.emplace_back();
    } catch (const CheckpointException& exception) {
      CHECK(exception.committed() == Committed::kNo);
      heard.push_back(exception.failures());
      if (!exception.save_id().empty()) failed_saves.insert(exception.save_id());
    }
  }
  // Checks that the caller on `rank` cancelled the last call.
  void check_cancelled(int rank, ErrorCode code, std::optional<Phase> phase, const std::string& text) {
    REQUIRE(heard.back().size() == 1);
    REQUIRE(heard.back().count(rank) == 1);
    const Failure& failure = heard.back().at(rank);
    CHECK(failure.kind == FailureKind::kCancelled);
    CHECK(failure.code == code);
    if (phase) CHECK(failure.phase == *phase);
    CHECK(failure.what.find(text) != std::string::npos);
  }

  World& world;
  const std::string id;
  Checkpointer checkpointer;
  std::vector<FailureMap> heard;
  std::set<std::string> failed_saves;
};

// Runs `body` on all ranks of a world. Checks that all ranks got the same failures for each call.
void on_ranks(int size, const std::string& place, const std::function<void(Rank&)>& body, const WorldOptions& options = {}) {
  std::vector<std::vector<FailureMap>> heard(static_cast<std::size_t>(size));
  on_all_ranks(
      size,
      [&](World& world) {
        Rank rank(world, place);
        body(rank);
        heard[static_cast<std::size_t>(world.rank())] = rank.heard;
      },
      options);
  for (const auto& own : heard) {
    const bool same = own == heard.front();
    CHECK(same);
  }
}

// Hooks, and the phase in which the caller's rank is then: during the coordinator's hooks, a rank
// waits in the phase of its own part.
using Moments = std::vector<std::pair<std::string, Phase>>;

// Makes the call once for each moment, and cancels it there from one rank. Checks that the
// checkpoint of generation 1 stays.
void cancel_at_each(const Moments& moments, Rank& self,
                    const std::function<void(const BeforeHook&, const std::optional<Cancellation>&)>& call) {
  for (const auto& moment : moments) {
    const std::string& hook = moment.first;
    CAPTURE(hook);
    const int caller = hook == "prepare_global_plan" ? 0 : self.world.size() - 1;
    const bool is_caller = self.world.rank() == caller;
    const Cancellation cancellation;
    const auto cancel_there = [&](const std::string& reached) {
      if (is_caller && reached == hook) cancellation.cancel("preempted");
    };
    call(cancel_there, is_caller ? std::optional(cancellation) : std::nullopt);
    self.check_cancelled(caller, ErrorCode::kCancelled, moment.second, "preempted");
    self.check_loads(1);
  }
}

TEST_CASE_FIXTURE(LeakCheck, "a cancelled save fails on all ranks in any phase, and publishes nothing") {
  const Moments moments{{"reset", Phase::kLocalPlan},
                        {"set_up_storage_writer", Phase::kLocalPlan},
                        {"prepare_local_plan", Phase::kLocalPlan},
                        {"prepare_global_plan", Phase::kLocalPlan},
                        {"write_data", Phase::kWrite}};
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    const TemporaryDirectory directory;
    on_ranks(size, directory.path() + "/step", [&](Rank& self) {
      self.save(1);
      cancel_at_each(moments, self, [&](const BeforeHook& before, const std::optional<Cancellation>& cancellation) {
        SaveOptions options;
        options.storage_writer = std::make_shared<WatchedWriter>(before);
        options.cancellation = cancellation;
        self.save(2, options);
      });
      self.save(3);
      self.check_loads(3);
      if (self.world.rank() != 0) return;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path()))
        for (const auto& save_id : self.failed_saves)
          CHECK_MESSAGE(entry.path().string().find(save_id) == std::string::npos, "left behind: " << entry.path().string());
    });
  }
}

TEST_CASE("a save is not cancelled any more once it is being published") {
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    const TemporaryDirectory directory;
    on_ranks(size, directory.path() + "/step", [&](Rank& self) {
      SaveOptions options;
      const Cancellation cancellation;
      options.cancellation = cancellation;
      options.storage_writer = std::make_shared<WatchedWriter>([&](const std::string& reached) {
        if (reached == "finish") cancellation.cancel("too late");
      });
      self.save(1, options);
      CHECK(self.heard.back().empty());
      CHECK(cancellation.is_cancelled() == (self.world.rank() == 0));
      self.check_loads(1);
    });
  }
}

TEST_CASE("a cancelled Cancellation ends each call that is given it") {
  for (const int size : {1, 4}) {
    CAPTURE(size);
    const TemporaryDirectory directory;
    on_ranks(size, directory.path() + "/step", [&](Rank& self) {
      self.save(1);
      Cancellation cancellation;
      cancellation.cancel("shutting down");
      cancellation.cancel("not the first reason");
      SaveOptions saving;
      LoadOptions loading;
      if (self.world.rank() == size - 1) saving.cancellation = loading.cancellation = cancellation;
      self.save(2, saving);
      self.check_cancelled(size - 1, ErrorCode::kCancelled, std::nullopt, "shutting down");
      self.load(loading);
      self.check_cancelled(size - 1, ErrorCode::kCancelled, std::nullopt, "shutting down");
      self.check_loads(1);
    });
  }
}

TEST_CASE_FIXTURE(LeakCheck, "a missed deadline names the awaited ranks, and late ranks learn of it") {
  const TemporaryDirectory directory;
  std::promise<void> passed[2];
  on_ranks(2, directory.path() + "/step", [&](Rank& self) {
    self.save(1);
    const bool first = self.world.rank() == 0;
    SaveOptions saving;
    LoadOptions loading;
    if (first) saving.deadline = loading.deadline = milliseconds(1);
    if (!first) passed[0].get_future().wait();
    self.save(2, saving);
    if (first) passed[0].set_value();
    self.check_cancelled(0, ErrorCode::kDeadline, Phase::kJoin, "was waiting for rank 1 to join it");
    CHECK(self.heard.back().at(0).what.find("the deadline of ") == 0);
    if (!first) passed[1].get_future().wait();
    self.load(loading);
    if (first) passed[1].set_value();
    self.check_cancelled(0, ErrorCode::kDeadline, Phase::kJoin, "was waiting for rank 1 to join it");
    self.check_loads(1);
  });
}

TEST_CASE("a save by this rank alone has a deadline too") {
  const TemporaryDirectory directory;
  SaveOptions options;
  options.no_dist = true;
  options.deadline = milliseconds(-1);
  const StateDict state{{"step", 1}, {"loss", 0.5}};
  CHECK_THROWS_AS(save(state, directory.path() + "/step", options), CheckpointException);
  CHECK_FALSE(std::filesystem::exists(directory.path() + "/step/.metadata"));
}

}  // namespace
}  // namespace cairn::testing
