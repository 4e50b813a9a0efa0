// Injected faults in whole saves and loads: the failures that every rank gets, and the need for
// `allow_injection`.
#include <cairn/runtime/testing/injection.hpp>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>

#include <cairn/base/injection.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/leak_check.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>
#include <cairn/tests/support/torch.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// Sets CAIRN_INJECT for its lifetime. Its destructor ends all injection.
class Setting {
 public:
  explicit Setting(const std::string& spec) { ::setenv("CAIRN_INJECT", spec.c_str(), 1); }
  ~Setting() {
    ::unsetenv("CAIRN_INJECT");
    allow_injection();
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
};

// The failures of one call on each of two ranks.
struct Told {
  std::array<std::optional<FailureMap>, 2> failures;  // nothing = success
  std::array<Committed, 2> committed{Committed::kNo, Committed::kNo};

  bool all_succeeded() const { return !failures[0] && !failures[1]; }
  Failure only(int rank) const {
    REQUIRE(failures[0]);
    REQUIRE(failures[1]);
    const bool same = *failures[0] == *failures[1];
    CHECK(same);
    REQUIRE(failures[0]->size() == 1);
    REQUIRE(failures[0]->count(rank) == 1);
    return failures[0]->at(rank);
  }
};

template <class Call>
void note(Told& told, int rank, Call call) {
  const auto index = static_cast<std::size_t>(rank);
  told.failures[index].reset();
  try {
    call();
  } catch (const CheckpointException& exception) {
    told.failures[index] = exception.failures();
    told.committed[index] = exception.committed();
  }
}

// Makes a save and then a load in a world of two ranks with the rules of `spec`.
struct Attempts {
  Told save, load;

  explicit Attempts(const std::string& spec, const std::string& id, const CheckpointReaderOptions& reading = {}) {
    const Setting setting(spec);
    allow_injection();
    on_all_ranks(2, [&](World& world) {
      Checkpointer checkpointer(world);
      note(save, world.rank(), [&] { checkpointer.save(common_state(world.rank(), 2), id); });
      StateDict loaded = common_state(world.rank(), 2);
      LoadOptions options;
      options.reader = reading;
      note(load, world.rank(), [&] { checkpointer.load(loaded, id, options); });
    });
  }
};

}  // namespace

TEST_CASE("a rule that is not understood is refused before anything runs") {
  const Setting setting("kill@hook:write_date");
  const Thrown thrown = thrown_by([] { allow_injection(); });
  CHECK(thrown.code == ErrorCode::kInvalidArgument);
  for (const auto* part : {"CAIRN_INJECT", "\"write_date\" instead of ", "write_data", "set_up_storage_reader", "abandon"})
    CHECK_MESSAGE(thrown.says(part), thrown.what);
  CHECK_FALSE(thrown.says("release"));  // it runs no user code
}

TEST_CASE("without allow_injection nothing is injected") {
  TemporaryDirectory directory;
  allow_injection();  // CAIRN_INJECT is not set, so there is no injector
  CHECK(active_injector() == nullptr);
  const Setting setting("throw@hook:write_data");
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    CHECK_NOTHROW(checkpointer.save(common_state(world.rank(), 2), directory.path() + "/checkpoint"));
  });
}

TEST_CASE("a hook throws on the rank that is named, and only that time") {
  LeakCheck leaks;
  TemporaryDirectory directory;
  const std::string id = directory.path() + "/checkpoint";
  SUBCASE("of a writer") {
    const Failure failure = Attempts("throw@hook:write_data,rank=1", id).save.only(1);
    CHECK(failure.kind == FailureKind::kRaised);
    CHECK(failure.phase == Phase::kWrite);
    CHECK(failure.type == "cairn::InjectedFault");
    CHECK(failure.what == "injected into rank 1: throw@hook:write_data,rank=1");
    CHECK(failure.actor == "storage");
  }
  SUBCASE("of a planner, by its phase") {
    const Failure failure = Attempts("throw@phase:local_plan,rank=0", id).save.only(0);
    CHECK(failure.phase == Phase::kLocalPlan);
    CHECK(failure.type == "cairn::InjectedFault");
  }
  SUBCASE("of a reader") {
    const Attempts attempts("throw@hook:read_data,rank=0", id);
    CHECK(attempts.save.all_succeeded());
    CHECK(attempts.load.only(0).phase == Phase::kRead);
  }
  SUBCASE("of the coordinator") { CHECK(Attempts("throw@hook:finish", id).save.only(0).phase == Phase::kFinish); }
  SUBCASE("the second of its kind is the load's") {
    const Attempts attempts("throw@hook:create_local_plan,nth=2", id);
    CHECK(attempts.save.all_succeeded());
    REQUIRE(attempts.load.failures[0]);
    CHECK(attempts.load.failures[0]->size() == 2);
  }
}

TEST_CASE("a rank whose links are dropped counts as lost") {
  LeakCheck leaks;
  TemporaryDirectory directory;
  const std::string id = directory.path() + "/checkpoint";
  std::string spec;
  SUBCASE("in a hook, all links") { spec = "drop-link@hook:create_local_plan,rank=1,nth=2"; }
  SUBCASE("at a message, one link") { spec = "drop-link=0@send:Written,rank=1,nth=2"; }
  const Setting setting(spec);
  allow_injection();
  Told dropped;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    const auto save = [&] { checkpointer.save(common_state(world.rank(), 2), id); };
    CHECK_NOTHROW(save());
    note(dropped, world.rank(), save);
  });
  REQUIRE(dropped.failures[0]);
  REQUIRE(dropped.failures[0]->count(1) == 1);
  CHECK(dropped.failures[0]->at(1).kind == FailureKind::kLost);
  CHECK(dropped.failures[1]);
}

TEST_CASE("an actor that dies at a message is reported as a lost rank") {
  TemporaryDirectory directory;
  const Setting setting("throw@send:Written,rank=1");
  allow_injection();
  Told told;
  on_all_ranks(2, [&](World& world) {
    Checkpointer checkpointer(world);
    note(told, world.rank(), [&] { checkpointer.save(common_state(world.rank(), 2), directory.path() + "/checkpoint"); });
  });
  REQUIRE(told.failures[0]);
  REQUIRE(told.failures[0]->count(1) == 1);
  CHECK(told.failures[0]->at(1).kind == FailureKind::kLost);
  REQUIRE(told.failures[1]);
  REQUIRE(told.failures[1]->count(1) == 1);
  CHECK(told.failures[1]->at(1).kind == FailureKind::kInternal);
}
