// Calls that have not ended yet: their ranks still run when the traces are read.
#include <cairn/tests/support/plain.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <cairn/base/process_name.hpp>
#include <cairn/tests/tracing/scripted_traces.hpp>

namespace cairn {
namespace {

using namespace cairn::testing;

// A process that does nothing until it is ended.
class Idle {
 public:
  Idle() : process_(::fork()) {
    if (process_ == 0)
      for (;;) ::pause();
  }
  ~Idle() { end(); }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  std::uint64_t id() const { return static_cast<std::uint64_t>(id_); }  // also after its end
  void kill() const { ::kill(process_, SIGKILL); }
  void end() {
    if (process_ <= 0) return;
    kill();
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  pid_t process_;
  const pid_t id_ = process_;
};

// Rank 1 is in a hook of a save, for which rank 0 waits.
class RunningSave {
 public:
  RunningSave() {
    for (const int rank : {0, 1}) script_.call(rank, 0);
    script_.state(0, 0.2, CoordinatorState::kJoining);
    script_.pass(1, 0, 0.5, 0.8, MessageKind::kJoin);
    script_.state(0, 1, CoordinatorState::kMoving);
    script_.pass(0, 1, 1, 1.2, MessageKind::kGlobalSavePlan);
    script_.began(1, 2, "write_data", Phase::kWrite);
  }
  // Writes the traces anew, as if these processes had written them.
  const std::string& written_by(const std::map<int, std::pair<std::uint64_t, std::string>>& writers) {
    script_.write();
    for (const auto& [rank, writer] : writers) {
      TraceHeader header = header_of(rank, 2);
      std::tie(header.process, header.host) = writer;
      write_trace_file(script_.path_of(rank), header, script_.events(rank));
    }
    return script_.directory();
  }

 private:
  ScriptedTraces script_{2};
};

TEST_CASE("trace of a running job: it does not run if a rank in it has ended, or none is known to run") {
  Idle rank_0, rank_1;
  RunningSave save;
  const auto runs = [&](const std::map<int, std::pair<std::uint64_t, std::string>>& writers) {
    return TraceDirectory(save.written_by(writers)).attempts().front().is_running;
  };
  const std::pair<std::uint64_t, std::string> here_0(rank_0.id(), host_name()), here_1(rank_1.id(), host_name());
  const std::pair<std::uint64_t, std::string> far_0(rank_0.id(), "elsewhere"), far_1(rank_1.id(), "elsewhere");
  CHECK(runs({{0, here_0}, {1, here_1}}));
  CHECK(runs({{0, here_0}, {1, far_1}}));
  CHECK_FALSE(runs({{0, far_0}, {1, far_1}}));
  rank_1.kill();
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(rank_1.id()), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(runs({{0, here_0}, {1, here_1}}));  // a zombie
  rank_1.end();
  CHECK_FALSE(runs({{0, here_0}, {1, here_1}}));
}

TEST_CASE("trace of a running job: a process that has the id of one that ended is not that one") {
  const Idle idle;
  CHECK(is_running(idle.id(), system_clock().wall_now()));
  CHECK_FALSE(is_running(idle.id(), system_clock().wall_now() - std::chrono::hours(24 * 365 * 20)));
}

TEST_CASE("trace directory: the duration of a call does not depend on the clocks of hosts") {
  ScriptedTraces script(2);
  script.set_ahead(1, 5000);
  script_good_save(script, {5, 40});
  const TraceDirectory directory(script.write());
  REQUIRE(directory.attempts().size() == 1);
  CHECK(directory.attempts().front().duration() < std::chrono::seconds(1));
  CHECK(directory.attempts().front().duration() > std::chrono::milliseconds(40));
}

}  // namespace
}  // namespace cairn
