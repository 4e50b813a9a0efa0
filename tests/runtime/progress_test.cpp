// Progress of saves and loads, as handles and people see it.
#include <cairn/tests/support/torch.hpp>
//
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/observation/progress_hooks.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/held_writer.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/own_child.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;

WorldOptions often() {
  WorldOptions options;
  options.runtime.progress_interval = milliseconds(1);
  return options;
}

StateDict shards_of(const World& world) {
  StateDict state;
  const DeviceMesh mesh({world.size()});
  for (const char* name : {"a", "b"})
    state.insert(name, ShardedTensor::from_local(torch::ones({1, 10}), {world.size(), 10}, mesh, {Shard{0}}, world.rank()));
  return state;
}

TEST_CASE("every rank sees how far all are, and which rank they wait for") {
  std::atomic<int> seen{0};
  on_all_ranks(
      3,
      [&](World& world) {
        Checkpointer checkpointer(world);
        const auto writer = std::make_shared<HeldWriter>(world.rank());
        if (world.rank() != 1) writer->gate.open();
        SaveOptions options;
        options.storage_writer = writer;
        options.coordinator_rank = 2;
        const auto saving = checkpointer.async_save(shards_of(world), "nowhere", options);
        SaveProgress progress;
        do {
          saving.wait(milliseconds(1));
          progress = saving.progress();
        } while (!progress.job || progress.job->ranks_done < 2 || progress.job->phase != Phase::kWrite ||
                 progress.job->bytes_done < 200);
        CHECK(progress.step == (world.rank() == 1 ? SaveProgress::Step::kWriting : SaveProgress::Step::kPublishing));
        CHECK(progress.job->items == 6);
        CHECK(progress.job->items_done == 5);
        CHECK(progress.job->bytes == 240);
        CHECK(progress.job->bytes_done == 200);
        CHECK(progress.job->slowest_rank == 1);
        CHECK(progress.job->slowest_bytes == 80);
        CHECK(progress.job->slowest_bytes_done == 40);
        CHECK(progress.job->bytes_per_second > 0);
        CHECK(progress.job->left.has_value());
        ++seen;
        if (world.rank() == 1) {
          while (seen < 3) saving.wait(milliseconds(1));
          writer->gate.open();
        }
        CHECK_NOTHROW(saving.result());
        CHECK(saving.progress().step == SaveProgress::Step::kDone);
        CHECK(saving.progress().bytes_done == 80);
      },
      often());
}

TEST_CASE("without progress_interval saves and loads work without reports") {
  WorldOptions never;
  never.runtime.progress_interval = milliseconds(0);
  on_all_ranks(
      2,
      [&](World& world) {
        Checkpointer checkpointer(world);
        const auto writer = std::make_shared<HeldWriter>(world.rank());
        SaveOptions options;
        options.storage_writer = writer;
        const auto saving = checkpointer.async_save(shards_of(world), "nowhere", options);
        writer->gate.wait_until_reached();
        CHECK_FALSE(saving.progress().job);
        CHECK(saving.progress().items_done == 1);
        writer->gate.open();
        saving.result();
      },
      never);
}

TEST_CASE("progress reports are not traced") {
  const World world = World::single(often());
  Checkpointer checkpointer(world);
  const auto writer = std::make_shared<HeldWriter>(0);
  SaveOptions options;
  options.storage_writer = writer;
  const auto saving = checkpointer.async_save(shards_of(world), "nowhere", options);
  while (!saving.progress().job) saving.wait(milliseconds(1));
  writer->gate.open();
  saving.result();
  CHECK(world.dump_trace().find("Written") != std::string::npos);
  CHECK(world.dump_trace().find("Progress") == std::string::npos);
}

// --- the counts of a rank ------------------------------------------------------------------------

TEST_CASE("a load counts what its reader has filled, in bytes as they are stored") {
  // Records how much is to be filled, before the reader begins.
  struct Planner : CountingLoadPlanner {
    Planner(LoadPlanner& planner, CallProgress& progress) : CountingLoadPlanner(planner, progress), counts(progress) {}
    LoadPlan finish_plan(LoadPlan plan) override {
      plan = CountingLoadPlanner::finish_plan(std::move(plan));
      planned = counts.seen().own;
      return plan;
    }
    const CallProgress& counts;
    protocol::Moved planned;
  };
  const TemporaryDirectory directory;
  Checkpointer checkpointer(World::single());
  StateDict state{{"doubles", torch::ones({5}, torch::kFloat64)}, {"text", "words"}, {"bytes", torch::ones({3}, torch::kUInt8)}};
  checkpointer.save(state, directory.path() + "/step");
  DefaultLoadPlanner inner;
  CallProgress progress;
  const auto planner = std::make_shared<Planner>(inner, progress);
  LoadOptions options;
  options.planner = planner;
  checkpointer.load(state, directory.path() + "/step", options);
  CHECK(planner->planned == protocol::Moved{3, 0, 43, 0});
  CHECK(progress.seen().own == protocol::Moved{3, 3, 43, 43});
}

TEST_CASE("more than a plan says is not counted") {
  CallProgress progress;
  progress.start_moving(1, 10);
  for (int i = 0; i < 3; ++i) progress.add_item(7);
  CHECK(progress.seen().own == protocol::Moved{1, 1, 10, 10});
}

// --- the output for people -----------------------------------------------------------------------

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void check_lines(const std::string& text, const std::vector<std::string>& begin_with) {
  const auto lines = lines_of(text);
  INFO(text);
  REQUIRE(lines.size() == begin_with.size());
  for (std::size_t i = 0; i < lines.size(); ++i) CHECK(lines[i].substr(0, begin_with[i].size()) == begin_with[i]);
}

TEST_CASE("a failed save logs the phases that it has come to, and that it failed") {
  const CapturedLog log(LogLevel::kInfo);
  Checkpointer checkpointer(World::single());
  SaveOptions options;
  options.storage_writer = std::make_shared<FaultyWriter>(FailOn{{"write_data", {0}}}, 0);
  CHECK_THROWS_AS(checkpointer.save({{"a", 1}}, "nowhere", options), CheckpointException);
  check_lines(log.text(), {"info rank 0: saving 'nowhere': planning", "info rank 0: saving 'nowhere': writing",
                           "info rank 0: saving 'nowhere' has failed after"});
}

TEST_CASE("rank 0 logs a line for each phase of a save, an asynchronous save and a load") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step";
  const CapturedLog log(LogLevel::kInfo);
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    StateDict state = shards_of(world);
    checkpointer.save(state, id);
    checkpointer.async_save(state, id).result();
    checkpointer.load(state, id);
  });
  const std::string saving = "info rank 0: saving '" + id + "': ";
  const std::string loading = "info rank 0: loading '" + id + "': ";
  const std::string saved = "info rank 0: saved '" + id + "' in ";
  check_lines(log.text(), {saving + "planning on 2 ranks", saving + "writing on 2 ranks", saving + "publishing", saved,
                           saving + "planning on 2 ranks", saving + "writing on 2 ranks", saving + "publishing", saved,
                           loading + "planning on 2 ranks", loading + "reading on 2 ranks", loading + "finishing",
                           "info rank 0: loaded '" + id});
}

TEST_CASE("on a terminal a save is one line, which is redrawn, and gone in the end") {
  const std::string text = stderr_of_case("progress child: a save that waits for its terminal", {{"TERM", "xterm"}},
                                          ChildStderr::kTerminal, 100, "writing");
  CHECK(text.find("\033[B\rsaving nowhere: writing 50 %, 40 of 80 bytes") != std::string::npos);
  CHECK(text.substr(text.size() - 3) == "\033[J");
  CHECK(text.find("[info]") == std::string::npos);
}

TEST_CASE("where standard error is no terminal, lines of the log take its place") {
  const std::string text = stderr_of_case("progress child: a save", {{"TERM", "xterm"}, {"CAIRN_LOG", "info"}});
  CHECK(text.find("[info] rank 0: saving 'nowhere': writing\n") != std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(stderr_of_case("progress child: a save").empty());
}

// A writer that blocks until a character is typed at the terminal.
class TerminalWriter : public FaultyWriter {
 public:
  TerminalWriter() : FaultyWriter({}, 0) {}
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    planner.resolve_data(plan, plan.items.at(0));
    char typed = 0;
    CHECK(::read(STDERR_FILENO, &typed, 1) == 1);
    return ready_future(WriteResults{});
  }
};

void save_shown(std::shared_ptr<StorageWriter> writer) {
  WorldOptions shown;
  shown.show_progress = ShowProgress::kTerminal;
  const World world = World::single(shown);
  SaveOptions options;
  options.storage_writer = std::move(writer);
  Checkpointer(world).save(shards_of(world), "nowhere", options);
}

TEST_CASE("progress child: a save that waits for its terminal" * doctest::skip()) {
  save_shown(std::make_shared<TerminalWriter>());
}
TEST_CASE("progress child: a save" * doctest::skip()) { save_shown(std::make_shared<FaultyWriter>(FailOn{}, 0)); }

}  // namespace
}  // namespace cairn::testing
