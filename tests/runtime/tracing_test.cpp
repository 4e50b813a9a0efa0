// The records that ranks write of their work: trace streams and failure reports.
#include <cairn/tests/support/torch.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/failure_report.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/failure_maps.hpp>
#include <cairn/tests/support/faulty_storage.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns a state that makes a save fail on rank 1, where a Stateful object throws `text`.
StateDict state_that_fails(const World& world, const std::string& text) {
  StateDict state = common_state(world.rank(), world.size());
  if (world.rank() != 1) return state;
  class FailsToDescribe final : public Stateful {
   public:
    explicit FailsToDescribe(std::string text) : text_(std::move(text)) {}
    Dict state_dict() override { throw PlannedFault(text_); }
    void load_state_dict(const Dict&) override {}

   private:
    const std::string text_;
  };
  state["broken"] = std::shared_ptr<Stateful>(std::make_shared<FailsToDescribe>(text));
  return state;
}

void fail_to_save(World& world, const std::string& id, const SaveOptions& options = {}) {
  Checkpointer checkpointer(world);
  CHECK_THROWS_AS(checkpointer.save(state_that_fails(world, "the planted fault"), id, options), CheckpointException);
}

TEST_CASE("tracing: CAIRN_TRACE makes every rank write all events, and no secrets") {
  TemporaryDirectory directory;
  const std::string traces = directory.path() + "/traces";
  const Environment environment({{"CAIRN_TRACE", traces}});
  std::string incarnation;
  on_all_ranks(3, [&](World& world) {
    Checkpointer checkpointer(world);
    SaveOptions options;
    options.user_metadata["note"] = "words-of-the-user";
    StateDict state = common_state(world.rank(), world.size());
    checkpointer.save(state, directory.path() + "/run/step_1", options);
    checkpointer.load(state, directory.path() + "/run/step_1");
    if (world.rank() == 0) incarnation = world.incarnation();
  });
  const TraceDirectory found(traces);
  REQUIRE(found.files().size() == 3);
  for (const auto& file : found.files()) {
    CHECK(file.fault.empty());
    CHECK(file.damage.empty());
    CHECK(file.header->world_size == 3);
    CHECK(content_of(file.path).find("words-of-the-user") == std::string::npos);
  }
  REQUIRE(found.jobs().size() == 1);
  CHECK(found.jobs()[0].incarnation == incarnation);
  CHECK(found.jobs()[0].missing.empty());
  REQUIRE(found.attempts().size() == 2);
  for (const auto& attempt : found.attempts()) {
    CHECK(attempt.checkpoint_id == directory.path() + "/run/step_1");
    CHECK(attempt.calls.size() == 3);
    CHECK(attempt.has_ended());
    CHECK_FALSE(attempt.has_failed());
    const Trace trace = found.read(attempt);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(attempt.calls.at(rank).ticket != 0);
      std::set<std::string> names;
      std::uint64_t bytes = 0;
      for (const auto& event : trace.events.at(rank)) {
        names.insert(name_of(event));
        const bool is_of_own_call =
            event.as<RankState>() != nullptr || event.kind == EventKind::kOperation || event.as<Committed>() != nullptr;
        if (is_of_own_call) CHECK(event.call == attempt.calls.at(rank).ticket);
        if (event.kind == EventKind::kOperation) bytes += event.bytes;
      }
      for (const char* name : {"rank: moving", "Begin", "Outcome"}) CHECK(names.count(name) == 1);
      CHECK(names.count(attempt.operation == Operation::kSave ? "write_data" : "read_data") == 1);
      CHECK(bytes > 0);
    }
  }
  CHECK(found.attempts()[0].operation == Operation::kSave);
  CHECK(found.attempts()[0].save_id == make_save_id(incarnation, "main", found.attempts()[0].counter));
  CHECK(found.attempts()[1].operation == Operation::kLoad);
}

TEST_CASE("tracing: a place that cannot be written is reported once, without effect") {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  CapturedLog log;
  WorldOptions options;
  options.trace_directory = directory.path() + "/file";
  const World world = World::single(options);
  Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_1");
  CHECK(log.text().find("there will be no trace of this rank") != std::string::npos);
}

TEST_CASE("tracing: a trace is written at once when somebody asks for it") {
  TemporaryDirectory directory;
  const World world = World::single();
  Checkpointer(world).save(common_state(0, 1), directory.path() + "/step_1");
  const std::string path = directory.path() + "/now.trace";
  world.write_trace(path);
  world.write_trace(path);
  const TraceDirectory found(path);
  REQUIRE(found.attempts().size() == 1);
  CHECK(found.attempts()[0].has_ended());
  CHECK_THROWS_AS(world.write_trace(directory.path() + "/none/now.trace"), Error);
}

TEST_CASE("tracing: a failed save leaves a report and every rank's last events in the run") {
  TemporaryDirectory directory;
  CapturedLog log;
  on_all_ranks(3, [&](World& world) { fail_to_save(world, directory.path() + "/step_7"); });
  std::vector<std::string> reports;
  for (const auto& name : names_in(directory.path()))
    if (name.rfind("failure-", 0) == 0) reports.push_back(name);
  REQUIRE(reports.size() == 1);
  const fs::path report = directory.path() + "/" + reports[0];
  CHECK(is_save_id(reports[0].substr(8)));
  const auto names = names_in(report);
  REQUIRE(names.size() == 4);
  CHECK(names[0].rfind("rank-00000-", 0) == 0);
  CHECK(names[3] == "report.txt");
  const std::string text = content_of(report / "report.txt");
  for (const char* part :
       {"the planted fault", "rank 1", "step_7", "committed   no", "PlannedFault", "The traces beside this file"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part, " is not in\n", text);
  CHECK(log.text().find("for details run: cairn trace " + report.string()) != std::string::npos);

  const TraceDirectory found(report.string());
  REQUIRE(found.attempts().size() == 1);
  CHECK(found.attempts()[0].has_failed());
  CHECK(found.attempts()[0].calls.size() == 3);
  CHECK("failure-" + found.attempts()[0].save_id == reports[0]);
  // The run's directory stands for its latest report.
  CHECK(TraceDirectory(directory.path()).path() == report.string());
  const Trace trace = found.read(found.attempts()[0]);
  bool told = false;
  for (const auto& event : trace.events.at(2))
    told =
        told || (event.kind == EventKind::kFailure && event.peer == 1 && event.text.find("the planted fault") != std::string::npos);
  CHECK(told);
}

TEST_CASE("tracing: of many ranks eight report a failure, those that failed among them") {
  TemporaryDirectory directory;
  const CapturedLog log;
  on_all_ranks(10, [&](World& world) { fail_to_save(world, directory.path() + "/step_7"); });
  std::size_t traces = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory.path()))
    if (entry.path().extension() == ".trace") ++traces;
  CHECK(traces == 8);

  FailureMap failures;
  const auto add = [&](int rank, FailureKind kind, ErrorCode code) {
    Failure failure;
    failure.rank = rank;
    failure.kind = kind;
    failure.code = code;
    failures.emplace(rank, failure);
  };
  CHECK(reporting_ranks(failures, 3) == std::set<int>{0, 1, 2});
  add(500, FailureKind::kRaised, ErrorCode::kUnavailable);
  add(2, FailureKind::kLost, ErrorCode::kUnavailable);
  add(3, FailureKind::kSilent, ErrorCode::kDeadline);
  CHECK(reporting_ranks(failures, 1000) == std::set<int>{0, 1, 4, 5, 6, 7, 8, 500});
  for (int rank = 600; rank < 700; ++rank) add(rank, FailureKind::kRaised, ErrorCode::kUnavailable);
  CHECK(reporting_ranks(failures, 1000) == std::set<int>{500, 600, 601, 602, 603, 604, 605, 606});
  CHECK(leaves_traces(failures));
  add(700, FailureKind::kRaised, ErrorCode::kNoSpace);
  CHECK_FALSE(leaves_traces(failures));
}

TEST_CASE("a failure report is not written through a link of its name") {
  const TemporaryDirectory directory;
  const std::string save_id = make_save_id(std::string(32, 'a'), "linked", 1);
  const auto report_into = [&](const std::string& folder) {
    const auto call = std::make_shared<ReportedCall>();
    call->directory = folder;
    call->operation = "save";
    call->incarnation = std::string(32, 'a');
    CallResult outcome;
    outcome.save_id = save_id;
    outcome.failures[0].code = ErrorCode::kNoSpace;  // so that no traces are written
    const auto written = std::make_shared<std::promise<void>>();
    call->done = [written](const CallResult&) { written->set_value(); };
    end_call(call, std::move(outcome));
    written->get_future().wait();
  };
  for (const char* const folder : {"/plain", "/linked", "/elsewhere"}) fs::create_directory(directory.path() + folder);
  fs::create_directory_symlink("../elsewhere", directory.path() + "/linked/failure-" + save_id);
  report_into(directory.path() + "/plain");
  CHECK(fs::exists(directory.path() + "/plain/failure-" + save_id + "/report.txt"));
  report_into(directory.path() + "/linked");
  CHECK(fs::is_empty(directory.path() + "/elsewhere"));
}

TEST_CASE("tracing: reports go where they are wanted, and nowhere if they are not") {
  TemporaryDirectory directory;
  const std::string wanted = directory.path() + "/wanted";
  fs::create_directory(wanted);
  WorldOptions options;
  options.failure_directory = wanted;
  on_all_ranks(
      2, [&](World& world) { fail_to_save(world, directory.path() + "/step_1"); }, options);
  CHECK(names_in(wanted).size() == 1);

  options.failure_reports = false;
  on_all_ranks(
      2, [&](World& world) { fail_to_save(world, directory.path() + "/step_1"); }, options);
  CHECK(names_in(wanted).size() == 1);

  // With a user-defined writer, an id need not be a place in a file system.
  on_all_ranks(2, [&](World& world) {
    SaveOptions of_users;
    of_users.storage_writer = std::make_shared<FaultyWriter>(FailOn{}, world.rank());
    fail_to_save(world, directory.path() + "/step_1", of_users);
  });
  for (const auto& name : names_in(directory.path())) CHECK(name.rfind("failure-", 0) != 0);
}

TEST_CASE("tracing: a call may have a place of its own for its report") {
  TemporaryDirectory directory;
  const std::string of_world = directory.path() + "/world", of_call = directory.path() + "/call";
  for (const auto& place : {of_world, of_call}) fs::create_directory(place);
  WorldOptions options;
  options.failure_directory = of_world;
  on_all_ranks(
      2,
      [&](World& world) {
        SaveOptions save;
        save.failure_directory = of_call;
        fail_to_save(world, directory.path() + "/step_1", save);
        LoadOptions load;
        load.failure_directory = of_call;
        StateDict state = common_state(world.rank(), world.size());
        CHECK_THROWS_AS(Checkpointer(world, "loads").load(state, directory.path() + "/nothing", load), CheckpointException);
      },
      options);
  CHECK(names_in(of_world).empty());
  CHECK(names_in(of_call).size() == 2);
}

TEST_CASE("tracing: a signal makes every rank write its last events") {
  TemporaryDirectory directory;
  const auto wait_for_traces = [](const std::string& place, std::ptrdiff_t count) {
    const auto is_whole = [](const std::string& name) { return fs::path(name).extension() == ".trace"; };
    for (std::ptrdiff_t found = 0; found < count; std::this_thread::yield()) {
      const auto names = fs::exists(place) ? names_in(place) : decltype(names_in(place)){};
      found = std::count_if(names.begin(), names.end(), is_whole);
    }
  };
  {
    const std::map<std::string, std::optional<std::string>> asked{{"CAIRN_TRACE_SIGNAL", "USR2:" + directory.path() + "/asked"}};
    const Environment environment(asked);
    const auto worlds = World::in_process(2);
    std::raise(SIGUSR2);
    wait_for_traces(directory.path() + "/asked", 2);
  }
  for (const auto& name : names_in(directory.path() + "/asked"))
    CHECK(TraceFileReader(directory.path() + "/asked/" + name).header().world_size == 2);

  {
    WorldOptions options;
    options.trace_signal = SIGUSR2;
    options.trace_signal_directory = directory.path() + "/own/directory";
    const auto worlds = World::in_process(2, options);
    std::raise(SIGUSR2);
    wait_for_traces(options.trace_signal_directory, 2);
  }
  CHECK(names_in(directory.path() + "/own/directory").size() == 2);

  static std::atomic<int> caught{0};
  struct sigaction before {};
  struct sigaction own {};
  own.sa_handler = [](int) { ++caught; };
  REQUIRE(::sigaction(SIGUSR2, &own, &before) == 0);
  CapturedLog log;
  WorldOptions options;
  options.trace_signal = SIGUSR2;
  { const World world = World::single(options); }
  CHECK(log.text().find("the program has a handler for it") != std::string::npos);
  std::raise(SIGUSR2);
  CHECK(caught == 1);
  ::sigaction(SIGUSR2, &before, nullptr);
  options.trace_signal = SIGKILL;
  CHECK_THROWS_AS(World::single(options), Error);
  const std::map<std::string, std::optional<std::string>> lunch{{"CAIRN_TRACE_SIGNAL", "LUNCH"}};
  const Environment nonsense(lunch);
  CHECK_THROWS_AS(World::single(), Error);
}

TEST_CASE("tracing: only the last 16 failures leave reports, and cancelled calls none") {
  TemporaryDirectory directory;
  const World world = World::single();
  {
    Checkpointer checkpointer(world);
    SaveOptions options;
    options.cancellation.emplace();
    options.cancellation->cancel("the test wants it");
    CHECK_THROWS_AS(checkpointer.save(common_state(0, 1), directory.path() + "/step_1", options), CheckpointException);
    CHECK(names_in(directory.path()).empty());
  }
  const std::string run = directory.path() + "/run";
  fs::create_directory(run);
  std::ofstream(run + "/file") << "no place for a checkpoint";
  // These may not be Cairn's: another name, extra files, or a symbolic link.
  const std::string elsewhere = directory.path() + "/elsewhere";
  fs::create_directories(run + "/failure-analysis");
  fs::create_directory(elsewhere);
  fs::create_directory_symlink(elsewhere, run + "/failure-" + make_save_id(std::string(32, 'a'), "linked", 1));
  const std::string annotated = run + "/failure-" + make_save_id(std::string(32, 'a'), "annotated", 1);
  fs::create_directory(annotated);
  std::ofstream(annotated + "/report.txt") << "cairn: the save of 'x' has failed\n";
  std::ofstream(annotated + "/notes.txt") << "mine";
  std::ofstream(elsewhere + "/report.txt") << "cairn: the save of 'x' has failed\n";
  std::ofstream(run + "/failure-analysis/report.txt") << "mine";

  const auto before = names_in(run);
  const auto reports = [&] {
    std::set<std::string> names;
    for (const auto& name : names_in(run))
      if (std::find(before.begin(), before.end(), name) == before.end()) names.insert(name);
    return names;
  };
  Checkpointer checkpointer(world);
  const auto fail = [&] {
    CHECK_THROWS_AS(checkpointer.save(common_state(0, 1), run + "/file"), CheckpointException);
    return reports();
  };
  const std::set<std::string> first = fail();
  REQUIRE(first.size() == 1);
  std::set<std::string> last = first;
  for (int i = 1; i < 20; ++i) {
    const std::set<std::string> now = fail();
    CHECK(now.size() == std::min<std::size_t>(i + 1, 16));
    std::size_t added = 0;
    for (const auto& name : now) added += last.count(name) == 0;
    CHECK(added == 1);
    last = now;
  }
  CHECK(last.count(*first.begin()) == 0);
  for (const auto& name : before) CHECK(fs::exists(run + "/" + name));
  CHECK(fs::exists(annotated + "/notes.txt"));
  CHECK(fs::exists(elsewhere + "/report.txt"));
}

}  // namespace
}  // namespace cairn::testing
