// Fault injection: how rules are parsed, when they apply, and what they do to a process.
#include <cairn/base/injection.hpp>

#include <array>
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

TEST_CASE("what is no rule is refused with its wrong part and what is allowed") {
  const std::string actions = "one of the actions kill, freeze, throw, delay=TIME, drop-link, drop-link=RANK, disk-full, ";
  const std::string places = "send:NAME, receive:NAME, hook:NAME, phase:NAME";
  for (const auto& [spec, part, allowed] : std::vector<std::array<std::string, 3>>{
           {"explode@hook:begin", "explode", actions},
           {"@hook:begin", "", actions},
           {"kill=1@hook:begin", "kill=1", actions},
           {"kill=@hook:begin", "kill=", actions},
           {"kill", "", "a place where kill can happen: " + places + ", store:NAME"},
           {"kill@", "", places + ", store:NAME"},
           {"kill@hook", "", "one of begin, write_data"},
           {"kill@hook:", "", "one of begin, write_data"},
           {"kill@hook:begin_", "begin_", "one of begin, write_data"},
           {"kill@hook:begin:x", "begin:x", "one of begin, write_data"},
           {"kill@hook:begin kill@hook:begin", "begin kill@hook:begin", "one of begin, write_data"},
           {"kill@send:begin", "begin", "one of Join, Written"},
           {"kill@phase:begin", "begin", "one of write, finish"},
           {"kill@store:begin", "begin", "one of create, write_at, sync, read, list"},
           {"kill@stor:begin", "stor:begin", places + ", store:NAME"},
           {"drop-link@store:read", "store:read", "a place where drop-link can happen: " + places},
           {"disk-full@hook:begin", "hook:begin", "a place where disk-full can happen: store:NAME"},
           {"disk-full@store:read", "read", "one of create, write_at, sync"},
           {"short-write@store:sync", "sync", "one of write_at"},
           {"delay@hook:begin", "", "a time from 1ms to 1h, as in delay=200ms"},
           {"delay=5@hook:begin", "5", "a time"},
           {"delay=0s@hook:begin", "0s", "a time"},
           {"delay=-1s@hook:begin", "-1s", "a time"},
           {"delay=3600001ms@hook:begin", "3600001ms", "a time"},
           {"delay=61min@hook:begin", "61min", "a time"},
           {"delay=4294967297ms@hook:begin", "4294967297ms", "a time"},
           {"drop-link=x@hook:begin", "x", "the rank at the other end"},
           {"drop-link=@hook:begin", "", "the rank at the other end"},
           {"kill@hook:begin,", "", "rank=N or nth=N"},
           {"kill@hook:begin, rank=1", " rank=1", "rank=N or nth=N"},
           {"kill@hook:begin,rank", "", "a rank"},
           {"kill@hook:begin,rank=-1", "-1", "a rank"},
           {"kill@hook:begin,rank=1000000", "1000000", "a rank"},
           {"kill@hook:begin,rank=1,rank=2", "rank=2", "at most once"},
           {"kill@hook:begin,nth=all,nth=1", "nth=1", "at most once"},
           {"kill@hook:begin,nth=0", "0", "from 1"},
           {"kill@hook:begin,nth=some", "some", "\"all\""},
           {"kill@hook:begin,nth=1x", "1x", "\"all\""},
       }) {
    const auto& shown = spec;
    CAPTURE(shown);
    // The rule stands among others, which are sound.
    const Thrown thrown = thrown_by([&, text = "throw@hook:begin; " + spec + " ;;"] { parse(text); });
    CHECK(thrown.is_error);
    CHECK(thrown.code == ErrorCode::kInvalidArgument);
    CHECK_MESSAGE(thrown.says("the injection \"" + spec + "\" has \"" + part + "\" instead of "), thrown.what);
    CHECK_MESSAGE(thrown.says(allowed), thrown.what);
  }
}

TEST_CASE("rules are separated by semicolons, with blanks around them") {
  CHECK(parse("").empty());
  CHECK(parse(" ;\n;").empty());
  const auto rules = parse(" drop-link=3@send:Join,nth=all,rank=999999;\tdelay=1min@store:read ;delay=3600s@phase:write");
  REQUIRE(rules.size() == 3);
  CHECK(rules[0].text == "drop-link=3@send:Join,nth=all,rank=999999");
  CHECK(rules[0].peer == 3);
  CHECK(rules[0].nth == 0);
  CHECK(rules[0].rank == 999999);
  CHECK(rules[1].text == "delay=1min@store:read");
  CHECK(rules[1].delay == std::chrono::minutes(1));
  CHECK(rules[1].nth == 1);
  CHECK_FALSE(rules[1].rank);
  CHECK(rules[2].delay == std::chrono::hours(1));
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
