// Fault injection: how rules are parsed, when they apply, and what they do to a process.
#include <cairn/base/injection.hpp>

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <cairn/tests/support/plain.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

const InjectionNames kNames{
    {"Join", "Written"}, {"begin", "write_data"}, {"write", "finish"}, {"create", "write_at", "sync", "read", "list"}};

std::vector<InjectionRule> parse(const std::string& spec) { return parse_injection(spec, kNames); }

// Records as text what an injector with these rules does to its process.
struct Deeds {
  std::vector<std::string> done;
  Injector injector;

  explicit Deeds(const std::string& spec, std::optional<int> process_rank = std::nullopt)
      : injector(parse(spec), process_rank, hands()) {}
  std::vector<std::string> take() { return std::exchange(done, {}); }
  // Passes a hook so many times. Returns what was done since the last call.
  std::vector<std::string> pass(const std::string& hook, int rank, int times = 1) {
    for (int i = 0; i < times; ++i) injector.pass(FaultSite::kHook, hook, rank);
    return take();
  }

 private:
  InjectorHands hands() {
    return {[this](int signal) { done.push_back("signal " + std::to_string(signal)); },
            [this](std::chrono::milliseconds time) { done.push_back("sleep " + std::to_string(time.count())); },
            [](const std::string&) {}};
  }
};

const std::vector<std::string> kNothing;
const std::vector<std::string> kKilled{"signal " + std::to_string(SIGKILL)};
const std::vector<std::string> kFrozen{"signal " + std::to_string(SIGSTOP)};

}  // namespace

TEST_CASE("what is no rule is refused with its position and what is allowed") {
  struct Bad {
    std::string spec;
    int position;
    std::string expected;
  };
  const std::string actions = "kill, freeze, throw, delay=TIME, drop-link, drop-link=RANK, disk-full, short-write, read-flip";
  for (const auto& [spec, position, expected] : std::vector<Bad>{
           {"explode@hook:begin", 1, actions},
           {"@hook:begin", 1, actions},
           {"kill", 5, "\"@\""},
           {"kill=1@hook:begin", 5, "\"@\""},
           {"kill@", 6, "send:NAME, receive:NAME, hook:NAME, phase:NAME, store:NAME"},
           {"kill@hook", 10, "\":\""},
           {"kill@hook:", 11, "begin, write_data"},
           {"kill@hook:begin_", 11, "begin, write_data"},
           {"kill@send:begin", 11, "Join, Written"},
           {"kill@phase:begin", 12, "write, finish"},
           {"kill@store:begin", 12, "create, write_at, sync, read, list"},
           {"drop-link@store:read", 11, "send:NAME, receive:NAME, hook:NAME, phase:NAME"},
           {"disk-full@hook:begin", 11, "store:NAME"},
           {"disk-full@store:read", 17, "create, write_at, sync"},
           {"short-write@store:sync", 19, "one of write_at"},
           {"delay@hook:begin", 6, "delay=200ms"},
           {"delay=5@hook:begin", 7, "a time"},
           {"delay=0s@hook:begin", 7, "a time"},
           {"delay=3600001ms@hook:begin", 7, "a time"},
           {"drop-link=x@hook:begin", 11, "the rank at the other end"},
           {"kill@hook:begin,", 17, "rank=N or nth=N"},
           {"kill@hook:begin,rank", 21, "\"=\""},
           {"kill@hook:begin,rank=-1", 22, "a rank"},
           {"kill@hook:begin,rank=1234567", 22, "a rank"},
           {"kill@hook:begin,rank=1,rank=2", 24, "at most once"},
           {"kill@hook:begin,nth=0", 21, "from 1"},
           {"kill@hook:begin,nth=some", 21, "\"all\""},
           {"kill@hook:begin,nth=1x", 22, "\";\""},
       }) {
    const auto& shown = spec;
    CAPTURE(shown);
    const Thrown thrown = thrown_by([&, text = spec] { parse(text); });
    CHECK(thrown.is_error);
    CHECK(thrown.code == ErrorCode::kInvalidArgument);
    CHECK_MESSAGE(thrown.says("at character " + std::to_string(position) + ":"), thrown.what);
    CHECK_MESSAGE(thrown.says(expected), thrown.what);
  }
}

TEST_CASE("a rule's turn comes at its place, on its rank, the nth time there") {
  SUBCASE("once, on every rank") {
    Deeds deeds("kill@hook:begin");
    deeds.injector.pass(FaultSite::kSend, "begin", 0);
    CHECK(deeds.pass("write_data", 0) == kNothing);
    CHECK(deeds.pass("begin", 0) == kKilled);
    CHECK(deeds.pass("begin", 0) == kNothing);
    CHECK(deeds.pass("begin", 1) == kKilled);
  }
  SUBCASE("the third time on one rank; others do not count") {
    Deeds deeds("freeze@hook:begin,rank=1,nth=3");
    CHECK(deeds.pass("begin", 0, 5) == kNothing);
    CHECK(deeds.pass("begin", 1, 2) == kNothing);
    CHECK(deeds.pass("begin", 1) == kFrozen);
    CHECK(deeds.pass("begin", 1) == kNothing);
  }
  SUBCASE("every time") {
    CHECK(Deeds("delay=20ms@hook:begin,nth=all").pass("begin", 0, 2) == std::vector<std::string>{"sleep 20", "sleep 20"});
  }
  SUBCASE("what the rank in a world is does not matter once the launcher has given one") {
    CHECK(Deeds("kill@hook:begin,rank=2", 2).pass("begin", 0) == kKilled);
    CHECK(Deeds("kill@hook:begin,rank=2", 3).pass("begin", 2) == kNothing);
  }
  SUBCASE("an unknown rank meets only what is for every rank") {
    CHECK(Deeds("kill@hook:begin,rank=0;freeze@hook:begin").pass("begin", -1) == kFrozen);
  }
  SUBCASE("new rules count anew") {
    Deeds deeds("kill@hook:begin,nth=2");
    CHECK(deeds.pass("begin", 0) == kNothing);
    deeds.injector.replace(parse("freeze@hook:begin,nth=2"));
    CHECK(deeds.pass("begin", 0) == kNothing);
    CHECK(deeds.pass("begin", 0) == kFrozen);
  }
}

TEST_CASE("a phase begins with its first hook in an attempt") {
  Deeds deeds("kill@phase:write,nth=2;freeze@hook:write_data,nth=2");
  const auto pass = [&](const std::string& hook, const std::string& phase, const std::string& checkpointer, std::uint64_t counter) {
    deeds.injector.pass_hook(hook, phase, checkpointer, counter, 0);
    return deeds.take();
  };
  CHECK(pass("begin", "write", "main", 1) == kNothing);
  CHECK(pass("write_data", "finish", "main", 1) == kNothing);
  CHECK(pass("begin", "write", "main", 1) == kNothing);  // the same attempt again: the phase does not begin twice
  CHECK(pass("begin", "", "main", 2) == kNothing);       // belongs to no phase
  CHECK(pass("begin", "write", "other", 1) == kKilled);  // of another checkpointer
  CHECK(pass("write_data", "write", "main", 2) == kFrozen);
}
