// Events that listeners receive about saves and loads, and listeners that block or throw without
// harm to the call.
#include <cairn/tests/support/torch.hpp>

#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/observation/call_notifier.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/gate.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace cairn::testing {
namespace {

constexpr std::chrono::milliseconds kShutdown{60'000};

// Records all events as text.
class Diary : public CallListener {
 public:
  void on_start(const CallEvent& event) override { note(event, "start of " + event.checkpoint_id); }
  void on_phase(const CallPhase& event) override { note(event, std::string("phase ") + to_string(event.phase)); }
  void on_failure(const CallFailed& event) override {
    note(event, "rank " + std::to_string(event.failed_rank) + " " + to_string(event.kind) + " in " +
                    to_string(event.phase.value()) + ": " + event.text);
  }
  void on_end(const CallEnd& event) override {
    note(event, event.ok ? "success" : event.was_cancelled ? "cancelled" : "failure");
    std::lock_guard lock(mutex_);
    ends_.push_back(event);
  }

  // Returns the lines of one rank, such as "save start of …".
  std::vector<std::string> told(int rank) const {
    std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const auto& [event, line] : notes_)
      if (event.rank == rank) lines.push_back(line);
    return lines;
  }
  std::vector<CallEvent> events() const {
    std::lock_guard lock(mutex_);
    std::vector<CallEvent> events;
    for (const auto& [event, line] : notes_) events.push_back(event);
    return events;
  }
  std::vector<CallEnd> ends() const {
    std::lock_guard lock(mutex_);
    return ends_;
  }
  std::set<std::thread::id> threads() const {
    std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  void note(const CallEvent& event, const std::string& what) {
    std::lock_guard lock(mutex_);
    notes_.emplace_back(event, std::string(to_string(event.operation)) + " " + what);
    threads_.insert(std::this_thread::get_id());
  }
  mutable std::mutex mutex_;
  std::vector<std::pair<CallEvent, std::string>> notes_;
  std::vector<CallEnd> ends_;
  std::set<std::thread::id> threads_;
};

class Throws final : public Stateful {
 public:
  Dict state_dict() override { throw PlannedFault("the planted fault"); }
  void load_state_dict(const Dict&) override {}
};

StateDict failing_state() {
  StateDict state = common_state(0, 1);
  state["broken"] = std::shared_ptr<Stateful>(std::make_shared<Throws>());
  return state;
}

WorldOptions heard_by(const std::shared_ptr<CallListener>& listener) {
  WorldOptions options;
  options.listeners = {listener};
  return options;
}

TEST_CASE("listeners: an event belongs to the call that it names") {
  const auto diary = std::make_shared<Diary>();
  CallNotifier notifier(0, {diary}, nullptr);
  const auto record = [&](EventKind kind, const What& what, std::uint64_t call, std::uint64_t bytes = 0) {
    ObservedEvent event;
    event.kind = kind;
    event.what = what;
    event.call = call;
    event.attempt = call;
    event.checkpointer = 7;
    event.bytes = bytes;
    notifier.on_event(event);
  };
  record(EventKind::kCall, Operation::kSave, 1);
  record(EventKind::kOutcome, Committed::kYes, 1);
  record(EventKind::kCall, Operation::kLoad, 2);
  record(EventKind::kBegan, {}, 1, 99);
  record(EventKind::kState, RankState::kMoving, 1);
  record(EventKind::kState, RankState::kPreparing, 2);
  record(EventKind::kOutcome, Committed::kNo, 2);
  REQUIRE(notifier.flush(kShutdown));
  REQUIRE(diary->ends().size() == 2);
  CHECK(diary->ends()[1].bytes == 0);
  CHECK(diary->ends()[1].phases.size() == 1);
  CHECK(diary->ends()[1].phases.count(Phase::kLocalPlan) == 1);
}

TEST_CASE("listeners: learn of each save and load by phase, on a thread of their own") {
  TemporaryDirectory directory;
  const std::string id = directory.path() + "/step_1";
  const auto diary = std::make_shared<Diary>();
  std::string incarnation;
  on_all_ranks(
      2,
      [&](World& world) {
        Checkpointer checkpointer(world);
        StateDict state = common_state(world.rank(), world.size());
        checkpointer.save(state, id);
        checkpointer.load(state, id);
        CHECK(world.shutdown(kShutdown));
        if (world.rank() == 0) incarnation = world.incarnation();
      },
      heard_by(diary));
  const std::vector<std::string> of_coordinator{
      "save start of " + id,    "save phase join", "save phase local_plan", "save phase global_plan", "save phase write",
      "save phase finish",      "save success",    "load start of " + id,   "load phase join",        "load phase local_plan",
      "load phase global_plan", "load phase read", "load success"};
  const std::vector<std::string> of_other{
      "save start of " + id, "save phase join", "save phase local_plan", "save phase write", "save success",
      "load start of " + id, "load phase join", "load phase local_plan", "load phase read",  "load success"};
  CHECK(diary->told(0) == of_coordinator);
  CHECK(diary->told(1) == of_other);
  CHECK(diary->threads().size() == 2);
  CHECK(diary->threads().count(std::this_thread::get_id()) == 0);
  std::uint64_t bytes = 0;
  REQUIRE(diary->ends().size() == 4);
  for (const auto& end : diary->ends()) {
    Duration phases{0};
    for (const auto& [phase, duration] : end.phases) phases += duration;
    const std::size_t of_all = 3;  // join, local_plan, write or read
    CHECK(end.phases.size() == (end.rank != 0 ? of_all : of_all + (end.operation == CallOperation::kSave ? 2 : 1)));
    CHECK(phases <= end.elapsed);
    CHECK(end.attempt != 0);
    if (end.operation == CallOperation::kLoad) continue;
    bytes += end.bytes;
    CHECK(end.committed == Committed::kYes);
    CHECK(end.save_id == make_save_id(incarnation, "main", end.attempt));
  }
  CHECK(bytes > 0);
}

TEST_CASE("listeners: get every entry of the failure map before the end of the call") {
  TemporaryDirectory directory;
  const auto diary = std::make_shared<Diary>();
  on_all_ranks(
      2,
      [&](World& world) {
        Checkpointer checkpointer(world);
        StateDict state = world.rank() == 1 ? failing_state() : common_state(0, 1);
        if (world.rank() == 0) state["broken"] = 1;
        CHECK_THROWS_AS(checkpointer.save(state, directory.path() + "/step_1"), CheckpointException);
        CHECK(world.shutdown(kShutdown));
      },
      heard_by(diary));
  for (int rank = 0; rank < 2; ++rank) {
    const auto told = diary->told(rank);
    REQUIRE(told.size() >= 3);
    CHECK(told[0] == "save start of " + directory.path() + "/step_1");
    CHECK(told.back() == "save failure");
    CHECK(told[told.size() - 2].find("save rank 1 raised in join: cairn::testing::PlannedFault: ") == 0);
  }
  for (const auto& end : diary->ends()) CHECK(end.committed == Committed::kNo);
}

TEST_CASE("listeners: do not hear of the agreements of a manager") {
  TemporaryDirectory directory;
  const auto diary = std::make_shared<Diary>();
  {
    CheckpointManager manager(World::single(heard_by(diary)), directory.path());
    StateDict state = common_state(0, 1);
    manager.save(1, state);
    manager.restore_latest(state);
  }
  const auto ends = diary->ends();
  REQUIRE(ends.size() == 2);
  CHECK(ends[0].operation == CallOperation::kSave);
  CHECK(ends[1].operation == CallOperation::kLoad);
  CHECK(ends[1].bytes > 0);
}

TEST_CASE("listeners: an exception is logged, and neither the save nor others see it") {
  class Clumsy final : public CallListener {
   public:
    void on_start(const CallEvent&) override { throw std::runtime_error("clumsy as ever"); }
    void on_end(const CallEnd&) override { throw 7; }
  };
  TemporaryDirectory directory;
  CapturedLog log;
  const auto diary = std::make_shared<Diary>();
  WorldOptions options;
  options.listeners = {std::make_shared<Clumsy>(), nullptr, diary};
  const World world = World::single(options);
  Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_1");
  CHECK(world.shutdown(kShutdown));
  CHECK(diary->told(0).front() == "save start of " + directory.path() + "/step_1");
  CHECK(diary->told(0).back() == "save success");
  CHECK(log.text().find("a listener threw, and saves and loads go on: clumsy as ever") != std::string::npos);
}

TEST_CASE("listeners: only the end of the world waits for one that hangs") {
  struct Hangs : CallListener {
    void on_start(const CallEvent&) override { gate.pass(); }
    Gate gate;
  };
  TemporaryDirectory directory;
  const auto hangs = std::make_shared<Hangs>();
  {
    const World world = World::single(heard_by(hangs));
    Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_1");  // returns although the listener blocks
    hangs->gate.wait_until_reached();
    CHECK_FALSE(world.shutdown(std::chrono::milliseconds(1)));
    hangs->gate.open();
  }

  struct Copies : CallListener {
    explicit Copies(std::string to) : place(std::move(to)) {}
    void on_end(const CallEnd& end) override {
      if (end.ok) Checkpointer(World::single()).save(common_state(0, 1), place);
    }
    const std::string place;
  };
  const std::string copy = directory.path() + "/copy";
  {
    const World world = World::single(heard_by(std::make_shared<Copies>(copy)));
    Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_2");
  }
  StateDict loaded = common_state(0, 1);
  Checkpointer(World::single()).load(loaded, copy);
}

}  // namespace
}  // namespace cairn::testing
