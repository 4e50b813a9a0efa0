// Writes traces of an invented job, for tests of the tools that show traces.
//
//   cairn_make_traces DIR good|failed|hostile|torn|job|late RANKS MESSAGES
//
// MESSAGES is the number of messages that each rank sends to other ranks. The job is one save: all
// ranks call and join, exchange messages while they write, and end. `failed`: rank 1 runs out of
// space during the write. `hostile`: the same, with texts that a page must not interpret as markup.
// `torn`: the traces end while all ranks are writing. `job`: MESSAGES saves, of which the second
// waits six seconds for the last rank, whose write is slow. `late`: of three messages between ranks
// 0 and 1, one is held up for 800 ms in its sender, one on its way, one in its receiver.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <cairn/tests/tracing/scripted_traces.hpp>

namespace {

using cairn::testing::ScriptedTraces;

constexpr const char* kHostileName = "</script><script>document.title='taken'</script><!--<script>\xe2\x80\xa8 \xff\xfe ]]>";

struct Job {
  std::string mode;
  int ranks = 0;
  std::uint64_t messages = 0;
  std::string text;  // the text of the exception

  bool is_hostile() const { return mode == "hostile"; }
  bool is_failing() const { return mode == "failed" || mode == "hostile"; }
};

void script_job(ScriptedTraces& script, const Job& job) {
  using cairn::Phase;
  std::vector<std::uint64_t> cause(static_cast<std::size_t>(job.ranks));
  const auto cause_of = [&](int rank) -> std::uint64_t& { return cause[static_cast<std::size_t>(rank)]; };
  std::vector<std::uint64_t> writing(static_cast<std::size_t>(job.ranks));
  for (int rank = 0; rank < job.ranks; ++rank) {
    const double at = 0.1 * rank;
    const std::uint64_t call = script.call(rank, at);
    script.state(rank, at + 0.1, cairn::RankState::kJoining, call);
    script.pass(rank, 0, at + 0.2, at + 0.4, cairn::MessageKind::kJoin, call);
  }
  const double joined = 0.1 * job.ranks + 1;
  script.state(0, joined, cairn::CoordinatorState::kJoining);
  script.state(0, joined + 0.1, cairn::CoordinatorState::kMoving);
  for (int rank = 0; rank < job.ranks; ++rank) {
    cause_of(rank) = script.pass(0, rank, joined + 0.2, joined + 0.5, cairn::MessageKind::kBegin);
    script.state(rank, joined + 0.6, cairn::RankState::kMoving, cause_of(rank));
    writing[static_cast<std::size_t>(rank)] =
        script.began(rank, joined + 0.7, "write_data", Phase::kWrite, cause_of(rank), 1u << 20);
  }
  // Each message is caused by the last one that its sender received.
  double now = joined + 1;
  for (std::uint64_t i = 0; i < job.messages; ++i, now += 0.05)
    for (int rank = 0; rank < job.ranks; ++rank) {
      const int to = (rank + 1 + static_cast<int>(i) % std::max(1, job.ranks - 1)) % job.ranks;
      const double sent = now + 0.0005 * rank;
      cause_of(to) = script.pass(rank, to, sent, sent + 0.03, i % 3 == 0 ? "Progress" : "SignOfLife", cause_of(rank));
    }
  if (job.mode == "torn") return;
  const int failing = job.is_failing() ? 1 % job.ranks : -1;
  std::uint64_t origin = 0;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const std::uint64_t began = writing[static_cast<std::size_t>(rank)];
    const std::uint64_t ended = script.ended(rank, now + 0.01, "write_data", Phase::kWrite, began, now + 0.01 - joined - 0.7,
                                             rank == failing ? std::string_view(job.text) : "");
    if (rank == failing) origin = ended;
    cause_of(0) = script.pass(rank, 0, now + 0.02 + 0.001 * rank, now + 0.05 + 0.001 * rank,
                              job.is_hostile()  ? ScriptedTraces::Message(kHostileName)
                              : rank == failing ? cairn::MessageKind::kPhaseFailed
                                                : cairn::MessageKind::kWritten,
                              ended);
  }
  script.state(0, now + 0.5, cairn::CoordinatorState::kIdle, cause_of(0));
  for (int rank = 0; rank < job.ranks; ++rank) {
    const std::uint64_t told = script.pass(0, rank, now + 0.6, now + 0.9, cairn::MessageKind::kOutcome, cause_of(0));
    if (job.is_failing()) script.failure(rank, now + 1, failing, cairn::FailureKind::kRaised, Phase::kWrite, job.text, origin);
    script.outcome(rank, now + 1.1, !job.is_failing(), told);
    script.state(rank, now + 1.2, cairn::RankState::kIdle, told);
  }
}

void script_saves(ScriptedTraces& script, const Job& job) {
  double begin = 0;
  for (std::uint64_t save = 1; save <= job.messages; ++save) {
    script.set_attempt(save);
    script.set_call(save);
    std::vector<double> write_ms(static_cast<std::size_t>(job.ranks));
    for (std::size_t rank = 0; rank < write_ms.size(); ++rank) write_ms[rank] = 5 + static_cast<double>(rank % 7);
    if (save == 2) write_ms.back() = 6000;
    cairn::testing::script_good_save(script, write_ms, begin, save);
    begin += 10'000;
  }
}

void script_late(ScriptedTraces& script) {
  using cairn::MessageKind;
  script.call(1, 0);
  const auto begun = script.pass(0, 1, 1, 1.2, MessageKind::kBegin, script.call(0, 0));
  const auto planned = script.pass(1, 0, 801.2, 801.4, MessageKind::kLocalSavePlan, begun);
  const auto moving = script.pass(0, 1, 802, 1602, MessageKind::kGlobalSavePlan, planned);
  const auto written = script.pass(1, 0, 1603, 1603.2, MessageKind::kWritten, moving);
  script.state(0, 2403.2, cairn::CoordinatorState::kIdle, written);
  for (int rank = 0; rank < 2; ++rank) script.outcome(rank, 2404, true, rank == 0 ? written : 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: cairn_make_traces DIR good|failed|hostile|torn|job|late RANKS MESSAGES\n";
    return 2;
  }
  Job job{argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10), "the disk is full"};
  if (job.is_hostile()) job.text = kHostileName + std::string(40'000, 'x') + "\"'`${document.title='taken'}&lt;";
  ScriptedTraces script(job.ranks);
  if (job.mode == "job")
    script_saves(script, job);
  else if (job.mode == "late")
    script_late(script);
  else
    script_job(script, job);
  std::filesystem::create_directories(argv[1]);
  std::filesystem::copy(script.write(), argv[1]);
  return 0;
}
