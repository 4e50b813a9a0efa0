// The stacks of hooks and store operations that hang, in failure reports and traces.
#include <cairn/tests/support/torch.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/own_child.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/stacks.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/wrapped_store.hpp>
#include <cairn/tracing/trace_file.hpp>

extern "C" __attribute__((noinline)) void wait_in_the_user_hook(cairn::testing::Gate* gate) {
  gate->pass();
  asm volatile("");  // so that the call above is no tail call
}
extern "C" __attribute__((noinline)) void wait_in_the_user_store(cairn::testing::Gate* gate) {
  gate->pass();
  asm volatile("");
}

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;

// Waits for the trace of `rank` in the only report in `directory`.
std::string wait_for_trace(const std::string& directory, int rank) {
  const std::string prefix = "rank-0000" + std::to_string(rank) + "-";
  while (true) {
    for (const auto& entry : fs::recursive_directory_iterator(directory))
      if (entry.path().extension() == ".trace" && entry.path().filename().string().rfind(prefix, 0) == 0)
        return entry.path().string();
    std::this_thread::yield();
  }
}

struct Stack {
  ObservedEvent thread;
  std::string name;
  std::string text;
  std::vector<std::uint64_t> offsets;
};

std::vector<Stack> stacks_in(const std::string& path) {
  std::vector<Stack> stacks;
  TraceFileReader reader(path);
  for (ObservedEvent event; reader.next(event);) {
    if (event.kind == EventKind::kStack) stacks.push_back({event, std::string(event.name), std::string(event.text), {}});
    if (event.kind == EventKind::kFrame && !stacks.empty() && event.cause == stacks.back().thread.id)
      stacks.back().offsets.push_back(event.number);
  }
  return stacks;
}

bool has_frame_in(const Stack& stack, void (*function)(Gate*)) {
  return std::any_of(stack.offsets.begin(), stack.offsets.end(), [&](auto offset) { return is_frame_in(function, offset); });
}

// Writes nothing, and waits in `wait_in_the_user_hook` on rank 1.
class HangingWriter : public FaultyWriter {
 public:
  HangingWriter(int rank, Gate& gate) : FaultyWriter({}, rank), rank_(rank), gate_(gate) {}
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    if (rank_ == 1) wait_in_the_user_hook(&gate_);
    return FaultyWriter::write_data(plan, planner);
  }

 private:
  const int rank_;
  Gate& gate_;
};

WorldOptions impatient(const std::string& failure_directory) {
  WorldOptions options;
  options.failure_directory = failure_directory;
  options.runtime.trace_store_operations = std::chrono::milliseconds(0);
  options.runtime.cancel_grace = std::chrono::milliseconds(50);
  return options;
}

TEST_CASE("stacks: the report of a passed deadline has the function in which a hook waits") {
  if (!takes_stacks()) return;
  const TemporaryDirectory directory;
  Gate gate;
  on_all_ranks(
      2,
      [&](World& world) {
        SaveOptions options;
        options.deadline = std::chrono::milliseconds(200);
        options.storage_writer = std::make_shared<HangingWriter>(world.rank(), gate);
        Checkpointer checkpointer(world);
        CHECK_THROWS_AS(checkpointer.save(common_state(world.rank(), world.size()), "nowhere", options), CheckpointException);
        if (world.rank() != 0) return;
        // Rank 1 has not returned from its hook.
        const auto stacks = stacks_in(wait_for_trace(directory.path(), 1));
        gate.open();
        REQUIRE(stacks.size() == 1);
        CHECK(stacks[0].name == "write_data");
        CHECK(stacks[0].thread.phase == Phase::kWrite);
        CHECK(stacks[0].thread.actor == Actor::kStorage);
        CHECK(stacks[0].thread.ok);
        CHECK(has_frame_in(stacks[0], wait_in_the_user_hook));
      },
      impatient(directory.path()));
}

TEST_CASE("stacks: the report of a failed save has the function in which a store waits") {
  if (!takes_stacks()) return;
  static Gate gate;
  static const auto control = std::make_shared<StoreControl>();
  control->before = [](const std::string& operation) {
    if (operation == "write_at") wait_in_the_user_store(&gate);
  };
  register_store("waits",
                 [](const std::string&) { return std::make_shared<WrappedStore>(open_store("mem://waits/run"), control); });
  const TemporaryDirectory directory;
  std::thread trainer([&] {
    const World world = World::single(impatient(directory.path()));
    SaveOptions options;
    options.deadline = std::chrono::milliseconds(200);
    CHECK_THROWS_AS(Checkpointer(world).save(common_state(0, 1), "waits://run/step_1", options), CheckpointException);
  });
  const auto stacks = stacks_in(wait_for_trace(directory.path(), 0));
  gate.open();
  trainer.join();
  const auto found = std::find_if(stacks.begin(), stacks.end(), [](const auto& stack) { return stack.name == "write_at"; });
  REQUIRE(found != stacks.end());
  CHECK(found->thread.actor == Actor::kStore);
  CHECK(found->thread.phase == Phase::kWrite);
  CHECK(found->text.find(".distcp") != std::string::npos);
  CHECK(has_frame_in(*found, wait_in_the_user_store));
}

TEST_CASE("stacks: a hook that outlasts cancel_grace has its stack in the trace of a good save") {
  if (!takes_stacks()) return;
  struct Opener final : Observer {
    void on_event(const ObservedEvent& event) noexcept override {
      if (event.kind == EventKind::kStack) gate.open();
    }
    Gate gate;
  };
  const TemporaryDirectory directory;
  const auto opener = std::make_shared<Opener>();
  WorldOptions world_options = impatient(directory.path());
  world_options.observer = opener;
  world_options.runtime.progress_interval = std::chrono::milliseconds(1);
  on_all_ranks(
      2,
      [&](World& world) {
        SaveOptions options;
        options.storage_writer = std::make_shared<HangingWriter>(world.rank(), opener->gate);
        Checkpointer(world).save(common_state(world.rank(), world.size()), "nowhere", options);
        if (world.rank() != 1) return;
        world.write_trace(directory.path() + "/good.trace");
        const auto stacks = stacks_in(directory.path() + "/good.trace");
        REQUIRE(stacks.size() == 1);
        CHECK(stacks[0].thread.duration >= std::chrono::milliseconds(50));
        CHECK(has_frame_in(stacks[0], wait_in_the_user_hook));
      },
      world_options);
}

TEST_CASE("stacks child: which real-time signals have a handler" * doctest::skip()) {
  const World world = World::single();
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) std::fprintf(stderr, "%d has one\n", number - SIGRTMIN);
  }
}

TEST_CASE("stacks: CAIRN_STACK_SIGNAL chooses the signal, and off installs no handler") {
  if (!takes_stacks()) return;
  const char* const child = "stacks child: which real-time signals have a handler";
  CHECK(stderr_of_case(child, {{"CAIRN_STACK_SIGNAL", "off"}}) == "");
  CHECK(stderr_of_case(child, {{"CAIRN_STACK_SIGNAL", std::to_string(SIGRTMIN + 5)}}) == "5 has one\n");
  CHECK(stderr_of_case(child, {{"CAIRN_STACK_SIGNAL", ""}}) == std::to_string(SIGRTMAX - 1 - SIGRTMIN) + " has one\n");
  const std::map<std::string, std::optional<std::string>> lunch{{"CAIRN_STACK_SIGNAL", "LUNCH"}};
  const Environment nonsense(lunch);
  CHECK_THROWS_AS(World::single(), Error);
}

}  // namespace
}  // namespace cairn::testing
