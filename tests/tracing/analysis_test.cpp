#include <cairn/tests/support/plain.hpp>

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <cairn/base/error.hpp>
#include <cairn/tests/tracing/scripted_traces.hpp>
#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>
#include <cairn/tracing/trace_explanation.hpp>
#include <cairn/tracing/trace_messages.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn {
namespace {

using namespace cairn::testing;

struct Analysed {
  explicit Analysed(const std::string& path) : directory(path), trace(directory.read(*directory.most_interesting())) {}
  TraceDirectory directory;
  Trace trace;
  std::vector<TracedMessage> messages = match_messages(trace);
  TraceClocks clocks{trace, messages};
  Diagnosis diagnosis = diagnose(trace, messages, clocks);
};

double milliseconds(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }
bool near(double value, double wanted, double by = 0.6) { return std::fabs(value - wanted) <= by; }

const TracedPhase& phase(const Diagnosis& diagnosis, Phase wanted) {
  for (const auto& it : diagnosis.phases)
    if (it.phase == wanted) return it;
  throw std::runtime_error(std::string("there is no phase ") + to_string(wanted));
}

bool notes(const Diagnosis& diagnosis, const std::string& text) {
  return std::any_of(diagnosis.notices.begin(), diagnosis.notices.end(),
                     [&](const auto& notice) { return notice.text.find(text) != std::string::npos; });
}

// Scripts how ranks join a save: rank 0 coordinates it.
void script_joins(ScriptedTraces& script, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto call = script.call(rank, 0);
    script.state(rank, 0.1, RankState::kJoining, call);
    if (rank == 0) script.state(0, 0.2, CoordinatorState::kJoining, call);
    if (rank != 0) script.pass(rank, 0, 0.5, 0.8, MessageKind::kJoin, call);
  }
}

ObservedEvent lost_link(int peer, std::string_view text, LinkChange change = LinkChange::kDown) {
  ObservedEvent event;
  event.kind = EventKind::kHandled;
  event.what = change;
  event.actor = Actor::kSupervisor;
  event.peer = peer;
  event.text = text;
  event.ok = false;
  return event;
}

ObservedEvent store_event(std::string_view name, std::string_view text, double milliseconds, bool ok = true) {
  ObservedEvent event;
  event.kind = EventKind::kStore;
  event.actor = Actor::kStore;
  event.name = name;
  event.text = text;
  event.duration = at_ms(milliseconds) - at_ms(0);
  event.ok = ok;
  return event;
}

TEST_CASE("trace analysis: differing clocks are aligned by messages, within a stated error") {
  ScriptedTraces script(4);
  script.set_ahead(1, 250);
  script.set_ahead(2, -4000);
  script.set_ahead(3, 0.05);
  script_good_save(script, {5, 40, 300, 50});
  const Analysed it(script.write());
  CHECK(it.clocks.reference() == 0);
  CHECK(it.clocks.unaligned().empty());
  CHECK(it.clocks.violations().empty());
  CHECK(it.clocks.error_max() <= at_ms(0.31) - at_ms(0));
  for (int rank = 1; rank < 4; ++rank) {
    const auto call = std::find_if(it.trace.events.at(rank).begin(), it.trace.events.at(rank).end(),
                                   [](const auto& event) { return event.kind == EventKind::kCall; });
    const auto first = it.trace.events.at(0).front();
    const double after = milliseconds(it.clocks.at(*call) - it.clocks.at(first));
    CHECK(std::fabs(after - rank) <= milliseconds(*it.clocks.error(rank)) + 1e-3);
  }
  CHECK(phase(it.diagnosis, Phase::kWrite).slowest_rank == 2);
  for (const auto& message : it.messages) {
    REQUIRE(message.sent);
    REQUIRE(message.handled);
    CHECK(it.clocks.at(*message.sent) <= it.clocks.at(*message.handled));
  }
}

TEST_CASE("trace analysis: messages that no clocks can explain, and one that got lost") {
  ScriptedTraces script(2);
  script_good_save(script, {5, 40});
  const auto back = script.send(1, 0, 100, "Late");
  script.handle(0, 1, 60, "Late", back);  // 40 ms before it was sent
  script.send(0, 1, 30, MessageKind::kStopPhase);
  script.outcome(1, 200, true);
  const Analysed it(script.write());
  REQUIRE(it.clocks.violations().size() == 1);
  CHECK(near(milliseconds(it.clocks.violations()[0].by), 39.7));
  CHECK(notes(it.diagnosis, "ranks 0 and 1 were handled before they were sent"));
}

TEST_CASE("trace analysis: a message that never arrived at a rank that went on") {
  ScriptedTraces script(3);
  script.call(0, 0);
  script.call(1, 0);
  script.pass(1, 0, 1, 1.2, MessageKind::kJoin);
  script.pass(0, 1, 2, 2.2, MessageKind::kBegin);
  script.send(0, 1, 10, MessageKind::kGlobalSavePlan);
  script.send(0, 2, 10, MessageKind::kGlobalSavePlan);  // no trace shows what became of it
  script.state(1, 20, RankState::kPreparing);
  const Analysed it(script.write());
  const auto lost = lost_messages(it.trace, it.messages, it.clocks);
  REQUIRE(lost.size() == 1);
  CHECK(lost[0].to == 1);
  CHECK(lost[0].sent->is(MessageKind::kGlobalSavePlan));
  CHECK(notes(it.diagnosis, "GlobalSavePlan from rank 0 to rank 1 never arrived"));
  CHECK(it.diagnosis.end == TracedEnd::kUnfinished);
  CHECK(it.trace.job.missing == std::vector<int>{2});
}

TEST_CASE("trace analysis: the chain of causes crosses ranks and fills the whole time") {
  ScriptedTraces script(4);
  script_good_save(script, {5, 40, 900, 50});
  const Analysed it(script.write());
  const auto* outcome = last_outcome(it.trace, it.clocks);
  REQUIRE(outcome != nullptr);
  const auto chain = causal_chain(it.trace, *outcome);
  CHECK(chain.front().event->kind == EventKind::kCall);
  CHECK(chain.front().event->rank == 3);  // the last rank to call
  bool through_write = false;
  for (const auto& link : chain) through_write = through_write || (link.event->rank == 2 && link.event->name == "write_data");
  CHECK(through_write);
  ObservedEvent lonely = *outcome;
  lonely.cause = 1'000'000;  // recorded, and not in the traces
  CHECK(cause_of(it.trace, lonely).event == nullptr);

  const auto steps = critical_path(it.trace, it.clocks, *outcome);
  Duration whole{0};
  Duration longest{0};
  std::string what;
  for (const auto& step : steps) {
    whole += step.duration;
    if (step.duration > longest) {
      longest = step.duration;
      what = step.what + " on rank " + std::to_string(step.rank);
    }
  }
  CHECK(what == "write_data on rank 2");
  CHECK(near(milliseconds(whole), milliseconds(it.clocks.at(*outcome) - it.diagnosis.begin), 0.01));
  CHECK(steps.front().what == "had not called yet");
}

TEST_CASE("trace analysis: steps of one rank with equal text are one step of the path") {
  ScriptedTraces script(1);
  const auto call = script.call(0, 0);
  const auto moving = script.state(0, 4, CoordinatorState::kMoving, call);
  const auto finishing = script.state(0, 8, CoordinatorState::kFinishing, moving);
  script.outcome(0, 9, true, finishing);
  const Analysed it(script.write());
  const auto steps = critical_path(it.trace, it.clocks, *it.trace.find(0, finishing));
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].what == "coordinated");
  CHECK(near(milliseconds(steps[0].duration), 8));
}

TEST_CASE("trace analysis: a rank with another failure map is noticed, the rest decides") {
  ScriptedTraces script(4);
  for (int rank = 0; rank < 4; ++rank) {
    script.call(rank, rank);
    if (rank == 0) {  // it was suspended, and then found its peers gone
      for (int other = 1; other < 4; ++other)
        script.failure(0, 900 + other, other, FailureKind::kLost, Phase::kWrite, "lost touch");
    } else {
      script.failure(rank, 500, 0, FailureKind::kSilent, Phase::kGlobalPlan, "no sign of life");
    }
    script.outcome(rank, 950, false);
  }
  const Analysed it(script.write());
  REQUIRE(it.diagnosis.failures.size() == 1);
  CHECK(it.diagnosis.failures[0].rank == 0);
  CHECK(it.diagnosis.failures[0].kind == FailureKind::kSilent);
  CHECK(notes(it.diagnosis, "rank 0 was told another failure map"));
}

TEST_CASE("trace analysis: late messages, retries, slow stores and late losses are noticed") {
  ScriptedTraces script(3);
  script_good_save(script, {5, 6, 7});
  const Analysed good(script.write());
  for (const auto& notice : good.diagnosis.notices) CHECK_MESSAGE(false, notice.text);

  script.pass(1, 0, 20, 2300, MessageKind::kStatusReply);
  script.send(2, 0, 21, MessageKind::kJoin);
  script.pass(0, 2, 22, 23, MessageKind::kNeedLocalPlan);
  script.add(2, 24, store_event("write_at", "/run/step_1/data", 3000));
  script.add(1, 25, store_event("sync", "cannot sync /run/step_1/data", 1, false));
  const Analysed it(script.write());
  CHECK(notes(it.diagnosis, "StatusReply from rank 1 came to rank 0 2.2"));
  CHECK(notes(it.diagnosis, "rank 2 joined once more"));
  CHECK(notes(it.diagnosis, "rank 0 asked for a plan that was to be known already (NeedLocalPlan)"));
  CHECK(notes(it.diagnosis, "rank 2: write_at of its store took 3.00 s: data"));
  CHECK(notes(it.diagnosis, "sync of the store of rank 1 failed, and the call went on: cannot sync"));
}

TEST_CASE("trace analysis: unanswered messages and late losses are named") {
  ScriptedTraces script(3);
  for (int rank = 0; rank < 3; ++rank) script.call(rank, rank);
  script.pass(1, 0, 5, 6, MessageKind::kJoin);
  script.pass(2, 0, 5, 6, MessageKind::kJoin);
  script.pass(0, 1, 7, 8, MessageKind::kBegin);
  script.state(2, 400, RankState::kJoining);
  const Analysed it(script.write());
  CHECK(it.diagnosis.end == TracedEnd::kUnfinished);
  CHECK(notes(it.diagnosis, "Join of rank 2 to rank 0 was not answered within 395"));
  CHECK_FALSE(notes(it.diagnosis, "of rank 1 to rank 0 was not answered"));

  ScriptedTraces lost(2);
  for (int rank = 0; rank < 2; ++rank) lost.call(rank, rank);
  lost.state(1, 3, RankState::kJoining);
  lost.add(0, 8, lost_link(1, "the connection was closed"));
  lost.outcome(0, 10, true);
  const Analysed early(lost.write());
  CHECK(early.diagnosis.end == TracedEnd::kSucceeded);
  CHECK(notes(early.diagnosis, "the trace of rank 1 ends before it had the outcome"));
  CHECK(notes(early.diagnosis, "rank 0 lost its connection to rank 1, which recorded nothing more: the connection was closed"));
}

TEST_CASE("trace directory: events belong to the call that they name") {
  ScriptedTraces script(1);
  script.set_call(5);
  script.call(0, 0, 1);
  script.state(0, 1, RankState::kMoving);
  script.outcome(0, 2, true);
  script.set_call(6);
  script.set_attempt(0);
  script.call(0, 3, 2);
  script.set_call(5);
  script.set_attempt(1);
  const auto late = script.began(0, 4, "write_data", Phase::kWrite);
  script.set_call(7);  // the beginning of this call is lost
  script.set_attempt(2);
  script.state(0, 5, RankState::kMoving);
  script.outcome(0, 6, false);
  const TraceDirectory directory(script.write());
  REQUIRE(directory.attempts().size() == 3);
  for (const auto& attempt : directory.attempts()) {
    const std::uint64_t ticket = attempt.calls.at(0).ticket;
    const Trace trace = directory.read(attempt);
    CHECK((trace.find(0, late) != nullptr) == (ticket == 5));
    for (const auto& event : trace.events.at(0)) CHECK(event.call == ticket);
    CHECK(attempt.has_ended() == (ticket != 6));
    CHECK(attempt.has_failed() == (ticket == 7));
  }
}

TEST_CASE("trace analysis: notices of plans, clocks, restarts and full mailboxes") {
  ScriptedTraces good(3);
  script_good_save(good, {5, 6, 7});
  const Analysed usual(good.write());
  for (const char* const word : {"uneven", "wall clock", "restarted", "ignored", "mailbox"})
    CHECK_FALSE(notes(usual.diagnosis, word));

  ScriptedTraces script(3);
  for (int rank = 0; rank < 3; ++rank) script.call(rank, rank);
  for (int rank = 0; rank < 3; ++rank)
    script.began(rank, 10 + rank, "write_data", Phase::kWrite, 0, std::uint64_t{rank == 2 ? 600u : 10u} << 20);
  for (const double time : {20, 21}) script.restarted(1, time);
  for (const int rank : {0, 2}) script.ignored(rank, 22, "message of another attempt");
  ObservedEvent late;
  late.kind = EventKind::kHandled;
  late.what = MessageKind::kWritten;
  late.actor = Actor::kCoordinator;
  late.queued = std::chrono::milliseconds(800);
  script.add(0, 900, late);
  script.set_ahead(1, 5000);
  script.state(1, 901, RankState::kMoving);
  script.set_ahead(2, -3000);
  script.state(2, 902, RankState::kMoving);
  const Analysed it(script.write());
  CHECK(notes(it.diagnosis, "the plan is uneven: rank 2 moves 600.0 MiB, on average a rank moves 206."));
  CHECK(notes(it.diagnosis, "2 actors of rank 1 died and were restarted"));
  CHECK(notes(it.diagnosis, "2 ignored on ranks 0, 2: message of another attempt"));
  CHECK(notes(it.diagnosis, "Written waited 800.0 ms in the mailbox of the coordinator of rank 0"));
  CHECK(notes(it.diagnosis, "the wall clock of rank 1 was set on by 5.00 s"));
  CHECK(notes(it.diagnosis, "the wall clock of rank 2 was set back by 3.00 s"));
}

TEST_CASE("trace analysis: a lost coordinator has its own phase and that of the others") {
  ScriptedTraces script(2);
  for (int rank = 0; rank < 2; ++rank) script.call(rank, rank);
  script.state(0, 5, CoordinatorState::kJoining);
  script.state(0, 6, CoordinatorState::kLocalPlans);
  script.state(1, 7, RankState::kPlanned);
  script.failure(1, 500, 0, FailureKind::kSilent, Phase::kGlobalPlan, "no sign of life");
  script.outcome(1, 501, false);
  const Analysed it(script.write());
  const auto explanations = explain(it.trace, it.clocks, it.diagnosis);
  REQUIRE(explanations.size() == 2);
  CHECK(explanations[0].title == "The last sign of " + it.trace.job.describe(0) +
                                     ", silent in global_plan (while it was in local_plan), and what led to it");
  CHECK(explanations[0].failure->own_phase == Phase::kLocalPlan);
  CHECK(explanations[1].title == "What led to the end of the call on rank 1");
  CHECK(explain(it.trace, it.clocks, it.diagnosis, 1).size() == 1);

  const Analysed without(script.write_only({1}));
  const auto missing = explain(without.trace, without.clocks, without.diagnosis);
  CHECK(missing.front().title == "Rank 0, silent in global_plan: no trace of it is here");
  CHECK(missing.front().chain.empty());
}

TEST_CASE("trace analysis: the last sign of a frozen rank is the one before it was given up") {
  ScriptedTraces script(2);
  for (int rank = 0; rank < 2; ++rank) script.call(rank, rank);
  script.state(0, 5, CoordinatorState::kJoining);
  const auto began = script.began(0, 6, "write_data", Phase::kWrite);
  script.handle(1, 0, 500, LinkChange::kDown, 0);
  script.failure(1, 501, 0, FailureKind::kSilent, Phase::kWrite, "no sign of life");
  script.outcome(1, 502, false);
  script.handle(0, 1, 510, LinkChange::kDown, 0);
  script.ended(0, 511, "write_data", Phase::kWrite, began, 505);
  script.failure(0, 512, 0, FailureKind::kSilent, Phase::kWrite, "no sign of life");
  script.outcome(0, 513, false);
  const Analysed it(script.write());
  REQUIRE(it.diagnosis.failures.size() == 1);
  const TracedFailure& failure = it.diagnosis.failures.front();
  REQUIRE(failure.hook);
  CHECK(failure.hook->name == "write_data");
  CHECK_FALSE(failure.hook->duration);
  CHECK(failure.fate == RankFate::kFrozen);
  CHECK(failure.last_event == it.trace.find(0, began));
  CHECK(failure.last_sign == it.clocks.at(*failure.last_event));
  const auto explanations = explain(it.trace, it.clocks, it.diagnosis);
  CHECK(explanations.front().title ==
        "What " + it.trace.job.describe(0) +
            ", silent in write (while it was in join), was in when it was last heard of, and what led to it");
  CHECK(explanations.front().chain.back().event->id == began);
}

// Scripts a save in which rank 1 has done its part of the write and is then given up.
void script_given_up(ScriptedTraces& script, FailureKind kind, std::string_view connection, LinkChange change = LinkChange::kDown) {
  script_joins(script, 3);
  script.state(0, 1, CoordinatorState::kMoving);
  for (int rank = 0; rank < 3; ++rank) {
    const auto plan = rank == 0 ? 0 : script.pass(0, rank, 1.1, 1.4, MessageKind::kGlobalSavePlan);
    script.state(rank, 1.5, RankState::kMoving, plan);
    script.state(rank, 10, RankState::kReported);
  }
  script.add(0, 20, lost_link(1, connection, change));
  script.state(0, 20.1, CoordinatorState::kIdle);
  for (const int rank : {0, 2}) {
    script.failure(rank, 21, 1, kind, Phase::kWrite, "lost touch with rank 1");
    script.outcome(rank, 22, false);
  }
}

// Writes how the process of rank 1 ended, as cairn-launch does.
void record_end(const ScriptedTraces& script, const std::string& end) {
  std::ofstream(script.directory() + "/launch-1-1.ends")
      << "launched 1600000000000 " << header_of(1, 3).host << "\nrank 1 1 2900000000000 " << end << "\n";
}

TracedFailure given_up(const std::string& path) {
  const Analysed it(path);
  REQUIRE(it.diagnosis.failures.size() == 1);
  CHECK(it.diagnosis.failures.front().rank == 1);
  return it.diagnosis.failures.front();
}

TEST_CASE("trace analysis: the end of a process, a freeze, a departure and a dead supervisor are told apart") {
  ScriptedTraces stopped(3);
  script_given_up(stopped, FailureKind::kSilent, "nothing was heard for 5 s");
  record_end(stopped, "signal SIGKILL told");
  TracedFailure failure = given_up(stopped.write());
  CHECK(failure.fate == RankFate::kFrozen);
  CHECK(failure.fate_text.find("it ended only when cairn-launch asked it to") != std::string::npos);

  ScriptedTraces unknown(3);
  script_given_up(unknown, FailureKind::kLost, "the connection to rank 1 was closed");
  unknown.send(1, 0, 11, MessageKind::kWritten);
  failure = given_up(unknown.write());
  CHECK(failure.fate == RankFate::kUnknown);
  CHECK(failure.fate_text == "its trace ends there: its process has probably ended");
  CHECK(failure.last_action == "sent Written to rank 0, which did not arrive");
  record_end(unknown, "code 7");
  failure = given_up(unknown.directory());
  CHECK(failure.fate == RankFate::kEnded);
  CHECK(failure.fate_text.find("its process exited with code 7 at ") == 0);

  ScriptedTraces left(3);
  script_given_up(left, FailureKind::kLost, "rank 1 closed the link: it leaves the world", LinkChange::kLeft);
  CHECK(given_up(left.write()).fate == RankFate::kLeft);

  ScriptedTraces threw(3);
  script_given_up(threw, FailureKind::kLost, "rank 1 closed the link: it leaves the world", LinkChange::kLeft);
  threw.pass(0, 1, 11, 12, MessageKind::kStopPhase);
  failure = given_up(threw.write());
  CHECK(failure.fate == RankFate::kActorEnded);
  CHECK(failure.fate_text.find("its supervisor ended while it handled StopPhase from rank 0") == 0);

  // Without its trace, the others know what came from it last.
  std::filesystem::remove(threw.path_of(1));
  failure = given_up(threw.directory());
  CHECK(failure.fate == RankFate::kUnknown);
  CHECK(failure.last_action.find("rank 0 received Join from it at ") == 0);
}

TEST_CASE("trace analysis: each of several lost ranks is told by the events about it alone") {
  ScriptedTraces script(4);
  script_joins(script, 4);
  script.state(0, 1, CoordinatorState::kMoving);
  script.pass(1, 3, 9, 10, MessageKind::kWritten);
  script.pass(2, 3, 10, 11, "Stuck");
  script.pass(2, 0, 11, 12, MessageKind::kWritten);
  script.add(3, 20, lost_link(2, "rank 2 closed the link: it leaves the world", LinkChange::kLeft));
  script.add(3, 21, lost_link(1, "the connection was closed"));
  script.add(0, 22, lost_link(2, "the connection was closed"));
  script.add(0, 23, lost_link(1, "rank 1 closed the link: it leaves the world", LinkChange::kLeft));
  for (const int rank : {0, 3}) {
    for (const int lost : {1, 2}) script.failure(rank, 30 + lost, lost, FailureKind::kLost, Phase::kWrite, "lost touch with it");
    script.outcome(rank, 33, false);
  }
  const Analysed it(script.write({1, 2}));
  const auto& failures = it.diagnosis.failures;
  REQUIRE(failures.size() == 2);
  CHECK(failures[0].last_action.find("rank 3 received Written from it at ") == 0);
  CHECK(failures[1].last_action.find("rank 0 received Written from it at ") == 0);
  CHECK(failures[0].fate_text == "");
  CHECK(failures[1].fate_text.find("it closed its connections") == 0);
  for (const auto& failure : failures) CHECK(failure.last_event == nullptr);
}

TEST_CASE("trace directory: lines about processes that make no sense are skipped") {
  ScriptedTraces script(2);
  script_good_save(script, {5, 6});
  const std::string host = header_of(0, 2).host;
  std::ofstream(script.directory() + "/launch-1-1.ends")
      << "rank 0 1 2900000000000 code 0\n"  // of no launch
      << "launched 1600000000000 " << host << "\n\nnoise\nrank x 1 2900000000000 code 0\nrank 0 1 99999999999999999999 code 0\n"
      << "rank 0 1 2900000000000 code -1\nrank 0 1 2900000000000 fell ill\nrank 0 1 1600000000001 code 9\n"
      << "rank 1 1 2900000000000 code 5 told\nlaunched 1600000000000 elsewhere\nrank 0 1 2900000000000 code 3\nrank 1";
  const TraceDirectory directory(script.write());
  REQUIRE(directory.jobs().size() == 1);
  const auto& processes = directory.jobs().front().processes;
  REQUIRE(processes.size() == 1);
  CHECK(processes.at(1).code == 5);
  CHECK(processes.at(1).told);
  CHECK_FALSE(processes.at(1).has_failed());
  CHECK(processes.at(1).describe() == "exited with code 5");
}

TEST_CASE("trace directory: a pipe named *.trace is a fault, one named *.ends is skipped") {
  ScriptedTraces script(1);
  script_good_save(script, {5});
  const std::string path = script.write();
  for (const char* name : {"/pipe.trace", "/pipe.ends"}) REQUIRE(::mkfifo((path + name).c_str(), 0600) == 0);
  const TraceDirectory directory(path);
  CHECK(directory.attempts().size() == 1);
  REQUIRE(directory.files().size() == 2);
  std::string faults;
  for (const auto& file : directory.files()) faults += file.fault;
  CHECK(faults == path + "/pipe.trace is no trace: it is a pipe or a device");
}

TEST_CASE("trace directory: more events than are asked for are left out, and that is said") {
  ScriptedTraces script(2);
  script_good_save(script, {5, 6});
  const TraceDirectory directory(script.write());
  const Trace trace = directory.read(directory.attempts().front(), 8);
  CHECK(trace.truncated);
  for (const auto& [rank, events] : trace.events) CHECK(events.size() == 4);
  CHECK_FALSE(directory.read(directory.attempts().front()).truncated);
}

TEST_CASE("trace directory: a file that has gone costs only its own events and is reported") {
  ScriptedTraces script(2);
  script_good_save(script, {5, 6});
  const TraceDirectory directory(script.write());
  std::filesystem::remove(script.path_of(1));
  const Trace trace = directory.read(directory.attempts().front());
  CHECK(trace.events.count(1) == 0);
  CHECK(trace.events.at(0).size() == script.last_id(0));
  REQUIRE(trace.unread.size() == 1);
  CHECK(trace.unread.front().find(script.path_of(1)) != std::string::npos);
  const auto messages = match_messages(trace);
  const TraceClocks clocks(trace, messages);
  CHECK(diagnose(trace, messages, clocks).end == TracedEnd::kSucceeded);
}

// The id of the last event of each of four saves.
struct SavesOfOneRank {
  SavesOfOneRank() {
    for (std::uint64_t save = 1; save <= 4; ++save) {
      script.set_attempt(save);
      script_good_save(script, {5}, 100.0 * static_cast<double>(save), save);
      ends.push_back(script.last_id(0));
    }
  }
  ScriptedTraces script{1};
  std::vector<std::uint64_t> ends;
};

TEST_CASE("trace directory: events in two rings of a rank count once, whatever their names") {
  const SavesOfOneRank whole;
  const TraceDirectory expected(whole.script.write());
  REQUIRE(expected.attempts().size() == 4);
  const SavesOfOneRank it;
  it.script.write_ring("b.trace", 0, 1, it.ends[2] - 3, 399);  // ends within save 3; the next ring starts within save 2
  it.script.write_ring("a.trace", 0, it.ends[0] + 4, it.ends[3], 500);
  const TraceDirectory directory(it.script.directory());
  REQUIRE(directory.attempts().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const TracedAttempt& attempt = directory.attempts()[i];
    const TracedAttempt& wanted = expected.attempts()[i];
    CHECK(attempt.counter == i + 1);
    CHECK(attempt.operation == Operation::kSave);
    CHECK(attempt.calls.at(0).has_ended);
    CHECK(attempt.calls.at(0).first_id == wanted.calls.at(0).first_id);
    CHECK(attempt.calls.at(0).last_id == wanted.calls.at(0).last_id);
    CHECK(directory.read(attempt).events.at(0).size() == expected.read(wanted).events.at(0).size());
  }
}

TEST_CASE("trace directory: what comes after a gap between two rings is another call") {
  const SavesOfOneRank it;
  it.script.write_ring("a.trace", 0, 1, it.ends[0] - 2, 150);
  it.script.write_ring("b.trace", 0, it.ends[2] - 2, it.ends[3], 500);
  const TraceDirectory directory(it.script.directory());
  std::vector<std::uint64_t> counters;
  for (const auto& attempt : directory.attempts()) counters.push_back(attempt.counter);
  CHECK(counters == std::vector<std::uint64_t>{1, 3, 4});
  CHECK_FALSE(directory.attempts()[0].has_ended());
  CHECK(directory.attempts()[0].calls.at(0).last_id == it.ends[0] - 2);
  CHECK(directory.attempts()[1].calls.at(0).first_id == it.ends[2] - 2);
  CHECK(directory.attempts()[1].has_ended());
}

TEST_CASE("trace directory: a failed save is looked at before an agreement that failed during it") {
  for (const bool is_later : {false, true}) {
    ScriptedTraces script(1);
    script.set_attempt(1);
    script.call(0, 0, 1);
    script.failure(0, 2, 0, FailureKind::kLost, Phase::kWrite, "text");
    if (is_later) script.outcome(0, 3, false);
    ObservedEvent event;  // of the agreement
    event.checkpointer = 77;
    event.ok = false;
    const auto add = [&](double time, EventKind kind, const What& what) {
      event.kind = kind;
      event.what = what;
      event.number = kind == EventKind::kCall;
      script.add(0, time, event);
    };
    add(4, EventKind::kCall, Operation::kAgree);
    add(4.5, EventKind::kFailure, FailureKind::kLost);
    add(5, EventKind::kOutcome, Committed::kNo);
    if (!is_later) script.outcome(0, 6, false);
    const TraceDirectory directory(script.write());
    REQUIRE(directory.attempts().size() == 2);
    CHECK(directory.most_interesting()->operation == (is_later ? Operation::kAgree : Operation::kSave));
  }
}

}  // namespace
}  // namespace cairn
