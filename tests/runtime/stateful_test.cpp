// Stateful objects, on ranks that hold different sets of them.
#include <cairn/tests/support/torch.hpp>
//
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <cairn/runtime/cairn.hpp>
#include <cairn/state/fields.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>

namespace cairn::testing {
namespace {

// Records each call, and throws in the chosen one.
struct Noted : Stateful {
  Noted(std::string with_name, std::vector<std::string>& into, std::string throws_in = "")
      : name(std::move(with_name)), calls(into), failing(std::move(throws_in)) {}
  Dict state_dict() override {
    note("save");
    return {{"value", 1}};
  }
  void load_state_dict(const Dict&) override { note("load"); }
  void note(const std::string& what) {
    calls.push_back(what + " " + name);
    if (what == failing) throw std::runtime_error(name + " does not " + what);
  }
  const std::string name;
  std::vector<std::string>& calls;
  const std::string failing;
};

Value noted(const std::string& name, std::vector<std::string>& calls, const std::string& throws_in = "") {
  return std::shared_ptr<Stateful>(std::make_shared<Noted>(name, calls, throws_in));
}

TEST_CASE("B2.5 ranks call Stateful objects in one order of all ranks' keys") {
  const TemporaryDirectory directory;
  const std::vector<std::vector<std::string>> listed{{"d", "b", "a"}, {"c"}, {}, {"a", "c", "d"}};
  on_all_ranks(4, [&](World& world) {
    const auto& own = listed[static_cast<std::size_t>(world.rank())];
    std::vector<std::string> calls;
    StateDict state;
    for (const auto& name : own) state.insert(name, noted(name, calls));
    Checkpointer checkpointer(world);
    checkpointer.save(state, directory.path() + "/step");
    checkpointer.async_save(state, directory.path() + "/step").result();
    checkpointer.load(state, directory.path() + "/step");
    std::vector<std::string> sorted = own;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::string> expected;
    for (const char* call : {"save ", "save ", "save ", "load "})  // a load first asks each object for its state as the target
      for (const auto& name : sorted) expected.push_back(call + name);
    CHECK(calls == expected);
  });
}

TEST_CASE("the trace and the log name the object that fails, and the one that takes longest") {
  const TemporaryDirectory directory;
  const CapturedLog log;
  WorldOptions options;
  options.trace_directory = directory.path() + "/traces";
  options.runtime.trace_store_operations = std::chrono::milliseconds(0);
  on_all_ranks(
      2,
      [&](World& world) {
        std::vector<std::string> calls;
        const auto state_of = [&](const std::string& throws_in) {
          return StateDict{{"a", List{1, noted("it", calls, world.rank() == 1 ? throws_in : "")}}};
        };
        Checkpointer checkpointer(world);
        const std::string id = directory.path() + "/step";
        StateDict state = state_of("");
        checkpointer.save(state, id);
        checkpointer.load(state, id);
        state = state_of("load");
        CHECK(failures_of([&] { checkpointer.load(state, id); }).size() == (world.rank() == 1 ? 1 : 0));
        checkpointer.load(state = state_of(""), id);
        CHECK(failures_of([&] { checkpointer.save(state_of("save"), id); }).size() == 1);
        if (world.rank() == 0) return;
        CHECK_THROWS_WITH_AS(checkpointer.prepare(state_of("save"), {}), "it does not save", std::runtime_error);
      },
      options);
  for (const char* line : {"warning rank 1: state_dict() of \"a.1\" failed: it does not save",
                           "warning rank 1: load_state_dict() of \"a.1\" failed: it does not load"})
    CHECK_MESSAGE(log.text().find(line) != std::string::npos, log.text());

  const TraceDirectory traces(options.trace_directory);
  std::vector<std::string> ends;
  for (const TracedAttempt& attempt : traces.attempts()) {
    const Trace trace = traces.read(attempt);
    const auto messages = match_messages(trace);
    const TraceClocks clocks(trace, messages);
    const Diagnosis diagnosis = diagnose(trace, messages, clocks);
    ends.push_back(to_string(diagnosis.end));
    for (const TracedFailure& failure : diagnosis.failures) {
      CHECK(failure.rank == 1);
      CHECK(failure.text.find("state_dict() of \"a.1\": it does not") != std::string::npos);
      REQUIRE(failure.hook.has_value());
    }
    if (!attempt.has_failed()) {
      std::string steps;  // as a critical path names them, if they take longest
      for (const auto& [rank, events] : trace.events)
        for (const ObservedEvent& event : events)
          if (event.kind == EventKind::kOperation) steps += std::string(event.name) + " (" + std::string(event.text) + ")\n";
      CHECK_MESSAGE(steps.find("begin (state_dict() of \"a.1\")") != std::string::npos, steps);
      if (attempt.operation == Operation::kLoad)
        CHECK_MESSAGE(steps.find("load_state_dict (load_state_dict() of \"a.1\")") != std::string::npos, steps);
    }
  }
  CHECK(ends == std::vector<std::string>{"succeeded", "succeeded", "failed", "succeeded", "failed"});
}

TEST_CASE("a per_rank object is each rank's own, and new ranks keep theirs") {
  const TemporaryDirectory directory;
  struct Kept {
    std::int64_t place = 0;
    torch::Tensor drawn = torch::zeros({3});
  };
  const auto state_of = [](const std::shared_ptr<Kept>& kept) {
    return StateDict{{"kept", per_rank(stateful(kept, {{"place", &Kept::place}, {"drawn", &Kept::drawn}}))}};
  };
  on_all_ranks(2, [&](World& world) {
    const auto kept = std::make_shared<Kept>(Kept{world.rank() + 10, torch::full({3}, world.rank())});
    Checkpointer(world).save(state_of(kept), directory.path() + "/step");
  });
  on_all_ranks(3, [&](World& world) {
    const auto kept = std::make_shared<Kept>(Kept{-1, torch::full({3}, -1)});
    StateDict state = state_of(kept);
    const LoadReport report = Checkpointer(world).load(state, directory.path() + "/step");
    CHECK(report.kept == (world.rank() == 2 ? std::vector<std::string>{"kept.place", "kept.drawn"} : std::vector<std::string>{}));
    CHECK(report.missing.empty());
    CHECK(report.unexpected.empty());
    CHECK(kept->place == (world.rank() == 2 ? -1 : world.rank() + 10));
    CHECK(kept->drawn.eq(world.rank() == 2 ? -1 : world.rank()).all().item<bool>());
  });
}

TEST_CASE("loading keeps values that the checkpoint lacks where the caller allows it") {
  const TemporaryDirectory directory;
  const std::string id = directory.path() + "/step";
  on_all_ranks(2, [&](World& world) {
    const auto rows_of = [&](const torch::Tensor& whole) {
      return ShardedTensor::distribute(whole, over_all_ranks(2), world.rank());
    };
    Checkpointer checkpointer(world);
    checkpointer.save({{"weight", rows_of(counting({6, 2}))}, {"step", 7}}, id);
    std::int64_t seen = 3;
    const auto state_of = [&](bool is_marked) {
      const auto mark = [is_marked](Value value) { return is_marked ? if_stored(std::move(value)) : value; };
      return StateDict{{"weight", mark(rows_of(torch::zeros({6, 2})))},
                       {"step", 0},
                       {"bias", mark(torch::full({2}, 5.0))},
                       {"fields", mark(stateful_fields({{"seen", seen}}))}};
    };
    StateDict refused = state_of(false);
    const FailureMap failures = failures_of([&] { checkpointer.load(refused, id); });
    REQUIRE_FALSE(failures.empty());
    const Failure& failure = failures.begin()->second;
    CHECK(failure.code == ErrorCode::kNotFound);
    CHECK(failure.what.find("\"bias\"") != std::string::npos);
    CHECK(failure.what.find("\"fields.seen\"") != std::string::npos);
    LoadOptions partial;
    partial.planning.allow_partial_load = true;
    for (const bool is_marked : {false, true}) {
      StateDict state = state_of(is_marked);
      checkpointer.load(state, id, is_marked ? LoadOptions{} : partial);
      const torch::Tensor rows = state.at("weight").sharded().local_shards().at(0).tensor;
      CHECK(rows.equal(rows_of(counting({6, 2})).local_shards().at(0).tensor));
      CHECK(state.at("step").to_int() == 7);
      CHECK(state.at("bias").tensor().equal(torch::full({2}, 5.0)));
      CHECK(seen == 3);
    }
  });
}

}  // namespace
}  // namespace cairn::testing
