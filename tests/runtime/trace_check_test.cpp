// The checker replays traces that were recorded with contents.
#include <cairn/tests/support/torch.hpp>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/messages/decision.pb.h>
#include <cairn/runtime/agreement.hpp>
#include <cairn/runtime/checkpointer.hpp>
#include <cairn/runtime/trace_check.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tracing/trace_writer.hpp>

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kRecordedRanks = 2;
constexpr char kOfPlanner[] = "words-of-the-planner";

// A planner that adds its own bytes to every plan.
class TalkingPlanner : public DefaultSavePlanner {
 public:
  SavePlan create_local_plan() override {
    SavePlan plan = DefaultSavePlanner::create_local_plan();
    plan.planner_data = kOfPlanner;
    return plan;
  }
};

// The traces of two ranks: two saves, the second with cached plans, a load, and with `agrees` two
// agreements.
class RecordedRun {
 public:
  explicit RecordedRun(const std::string& how = "full:", bool agrees = false) : traces_(directory_.path() + "/traces") {
    const Environment environment({{"CAIRN_TRACE", how + traces_}});
    on_all_ranks(kRecordedRanks, [&](World& world) {
      Checkpointer checkpointer(world);
      SaveOptions options;
      options.user_metadata["note"] = "words-of-the-user";
      options.planner = std::make_shared<TalkingPlanner>();
      StateDict state = common_state(world.rank(), world.size());
      for (const char* const step : {"/run/step_1", "/run/step_2"}) checkpointer.save(state, directory_.path() + step, options);
      checkpointer.load(state, directory_.path() + "/run/step_2");
      if (!agrees) return;
      Agreement agreement(world, "agreement");
      for (const char* const about : {"one thing", "another"})
        CHECK(agreement.reach(about, "words-of-the-user", [](const auto& brought) { return brought.at(1); }) == "words-of-the-user");
    });
  }
  const std::string& traces() const { return traces_; }
  TraceCheck check() const { return check_traces(TraceDirectory(traces_)); }
  std::string file_of(int rank) const {
    for (const auto& entry : fs::directory_iterator(traces_))
      if (TraceFileReader(entry.path().string()).header().rank == rank) return entry.path().string();
    FAIL("no file of rank ", rank);
    return "";
  }

  // Rewrites the recording of a rank. Passes every decision through `change`, and drops it if
  // `change` returns false.
  void rewrite(int rank, const std::function<bool(const ObservedEvent&, v1::Decision&)>& change) const {
    const std::string path = file_of(rank);
    Bytes bytes;
    {
      TraceFileReader reader(path, nullptr, true);
      TraceEncoder encoder;
      encoder.header(reader.header(), bytes);
      ObservedEvent event;
      while (reader.next(event)) {
        v1::Decision decision;
        std::string changed;
        if (!event.content.empty()) {
          REQUIRE(decision.ParseFromArray(event.content.data(), static_cast<int>(event.content.size())));
          if (!change(event, decision)) continue;
          changed = decision.SerializeAsString();
          event.content = changed;
        }
        encoder.event(event, bytes);
      }
    }
    std::ofstream(path, std::ios::binary) << bytes;
  }

 private:
  TemporaryDirectory directory_;
  const std::string traces_;
};

std::string recorded_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("trace check: machines decide again as they did, and nothing of the user's is in the recording") {
  const RecordedRun run("full:", true);
  const TraceCheck check = run.check();
  CHECK(check.agrees());
  CHECK(check.first() == nullptr);
  CHECK(check.left_out.empty());
  REQUIRE(check.ranks.size() == kRecordedRanks);
  for (const auto& rank : check.ranks) {
    CHECK(rank.gaps.empty());
    CHECK(rank.machines == (rank.rank == 0 ? 4 : 2));
    CHECK(rank.decisions > 30);
    const std::string bytes = recorded_bytes(run.file_of(rank.rank));
    CHECK(bytes.find("words-of-the-user") == std::string::npos);
    CHECK(bytes.find(kOfPlanner) == std::string::npos);
    CHECK(bytes.find("left out of a recording") != std::string::npos);
    CHECK(bytes.find("UseCachedPlan") != std::string::npos);
  }
}

TEST_CASE("trace check: a decision that was another one is found, with what was expected") {
  const RecordedRun run;
  std::uint64_t step = 0, event_id = 0;
  std::string effect;
  run.rewrite(1, [&](const ObservedEvent& event, v1::Decision& decision) {
    if (step != 0 || decision.effects_size() == 0 || decision.step() < 5) return true;
    step = decision.step();
    event_id = event.id;
    effect = decision.effects(0);
    decision.set_effects(0, "send a bill to rank 0");
    return true;
  });
  REQUIRE(step != 0);
  const TraceCheck check = run.check();
  CHECK_FALSE(check.agrees());
  REQUIRE(check.ranks.size() == kRecordedRanks);
  CHECK(check.ranks[0].differences.empty());
  REQUIRE(check.ranks[1].differences.size() == 1);
  const TraceDifference& difference = check.ranks[1].differences.front();
  CHECK(&difference == check.first());
  CHECK(difference.rank == 1);
  CHECK(difference.actor == "supervisor");
  CHECK(difference.checkpointer == "main");
  CHECK(difference.step == step);
  CHECK(difference.event == event_id);
  CHECK(difference.expected == "send a bill to rank 0");
  CHECK(difference.got == effect);
}

TEST_CASE("trace check: a machine that was given something else decides otherwise") {
  const RecordedRun run;
  bool changed = false;
  run.rewrite(0, [&](const ObservedEvent& event, v1::Decision& decision) {
    if (!changed && event.name == "Begin") {
      decision.mutable_event()->mutable_received()->mutable_begin()->set_ticket(4711);
      changed = true;
    }
    return true;
  });
  REQUIRE(changed);
  const TraceCheck check = run.check();
  REQUIRE(check.first() != nullptr);
  CHECK(check.first()->rank == 0);
  CHECK(check.first()->given == "Begin from rank 0");
  CHECK(check.first()->state == "rank: joining");
  CHECK(check.first()->expected == "state \"rank: preparing\"");
  CHECK(check.first()->got == "state \"rank: joining\"");
}

TEST_CASE("trace check: decisions that are missing end the comparison of their machine only, and that is said") {
  const RecordedRun run;
  SUBCASE("one in the middle") {
    run.rewrite(0, [](const ObservedEvent& event, v1::Decision& decision) {
      return !(event.actor == "coordinator" && decision.step() == 3);
    });
    const TraceCheck check = run.check();
    CHECK(check.agrees());
    REQUIRE(check.ranks[0].gaps.size() == 1);
    CHECK(check.ranks[0].gaps[0].find("is compared up to its step 2: the next that could be read is 4") != std::string::npos);
    CHECK(check.ranks[1].gaps.empty());
    CHECK(check.ranks[0].decisions > 30);
  }
  SUBCASE("the beginning") {
    run.rewrite(1, [](const ObservedEvent&, v1::Decision& decision) { return !decision.has_made(); });
    const TraceCheck check = run.check();
    CHECK(check.agrees());
    CHECK(check.ranks[1].decisions == 0);
    REQUIRE(check.ranks[1].gaps.size() == 1);
    CHECK(check.ranks[1].gaps[0].find("its beginning is missing") != std::string::npos);
  }
  SUBCASE("an event of a later version") {
    run.rewrite(1, [](const ObservedEvent&, v1::Decision& decision) {
      if (decision.step() == 4) decision.mutable_event()->Clear();
      return true;
    });
    const TraceCheck check = run.check();
    CHECK(check.agrees());
    CHECK(check.ranks[1].decisions == 3);
    REQUIRE(check.ranks[1].gaps.size() == 1);
    CHECK(check.ranks[1].gaps[0].find("this version does not know") != std::string::npos);
  }
}

TEST_CASE("trace check: recordings that are cut anywhere are compared up to the cut") {
  const RecordedRun run;
  const std::string path = run.file_of(1);
  const std::string whole = recorded_bytes(path);
  const std::uint64_t all = run.check().ranks[1].decisions;
  std::uint64_t last = 0;
  const std::size_t steps = 40;
  for (std::size_t i = 1; i <= steps; ++i) {
    fs::resize_file(path, 0);
    std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() * i / steps);
    const TraceCheck check = run.check();
    CHECK(check.agrees());
    const std::uint64_t decisions = check.ranks.size() < 2 ? 0 : check.ranks[1].decisions;
    CHECK(decisions >= last);
    last = decisions;
  }
  CHECK(last == all);
}

TEST_CASE("trace check: what has no contents is left out, and why is said") {
  SUBCASE("a stream without contents") {
    const TraceCheck check = RecordedRun("").check();
    CHECK_FALSE(check.has_compared());
    REQUIRE(check.left_out.size() == kRecordedRanks);
    CHECK(check.left_out[0].find("CAIRN_TRACE=full:DIR") != std::string::npos);
  }
  SUBCASE("what a ring held") {
    TemporaryDirectory directory;
    const World world = World::single();
    Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_1");
    world.write_trace(directory.path() + "/now.trace");
    const TraceCheck check = check_traces(TraceDirectory(directory.path()));
    CHECK_FALSE(check.has_compared());
    REQUIRE(check.left_out.size() == 1);
    CHECK(check.left_out[0].find("cannot be gone through again") != std::string::npos);
  }
  SUBCASE("a rank that is missing, and a file of a later version") {
    const RecordedRun run;
    const TraceFileReader reader(run.file_of(1));
    TraceHeader later = reader.header();
    fs::remove(run.file_of(1));
    later.version = kTraceVersion + 1;
    Bytes bytes;
    TraceEncoder().header(later, bytes);
    std::ofstream(run.traces() + "/later.trace", std::ios::binary) << bytes;
    const TraceCheck check = run.check();
    CHECK(check.agrees());
    CHECK(check.has_compared());
    CHECK(check.ranks.size() == 1);
    REQUIRE(check.left_out.size() == 2);
    CHECK(check.left_out[0].find("version") != std::string::npos);
    CHECK(check.left_out[1].find("rank 1") != std::string::npos);
  }
}

TEST_CASE("trace check: every decision is in the ring as tags and a digest, without contents") {
  TemporaryDirectory directory;
  const World world = World::single();
  Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_1");
  world.write_trace(directory.path() + "/now.trace");
  TraceFileReader reader(directory.path() + "/now.trace", nullptr, true);
  ObservedEvent event;
  std::vector<std::string> states;
  while (reader.next(event)) {
    CHECK(event.content.empty());
    if (event.kind != EventKind::kDecision || event.actor != "coordinator") continue;
    CHECK(event.number != 0);
    if (states.empty()) states.emplace_back(event.before);
    CHECK(states.back() == event.before);
    if (states.back() != event.detail) states.emplace_back(event.detail);
  }
  // In a world of one rank, the call completes the joining, so no joining state appears.
  CHECK(states == std::vector<std::string>{"coordinator: idle", "coordinator: local plans", "coordinator: global plan",
                                           "coordinator: moving", "coordinator: finishing", "coordinator: idle"});
}

}  // namespace
}  // namespace cairn::testing
