// Worlds of thousands of ranks: the memory, messages and state of one coordinator, successor or
// rank.
#include <cairn/messages/codec.hpp>
#include <cairn/tests/messages/allocation_meter.hpp>

#include "steps.hpp"

namespace cairn::test {
namespace {

using testing::AllocationMeter;

constexpr std::size_t kMiB = 1u << 20;

enum class Texts { kEqual, kByRank };

Failure long_failure(int rank, Texts texts) {
  Failure failure = failure_on(rank, std::string(16000, 'x'), ErrorCode::kNoSpace);
  failure.trace_position = 100 + static_cast<std::uint64_t>(rank);
  if (texts == Texts::kByRank) failure.what.replace(0, 12, "of rank " + std::to_string(1000000 + rank));
  return failure;
}

void check_tells_of_all(const FailureMap& failures, int ranks, Texts texts) {
  REQUIRE(failures.size() == static_cast<std::size_t>(ranks));
  int wrong = 0;
  for (const auto& [rank, failure] : failures) {
    const Failure whole = long_failure(rank, texts);
    const std::size_t shown = texts == Texts::kEqual ? whole.what.size() : 64;
    if (failure.rank != rank || failure.phase != whole.phase || failure.kind != whole.kind || failure.code != whole.code ||
        failure.trace_position != whole.trace_position || failure.what.compare(0, shown, whole.what, 0, shown) != 0)
      ++wrong;
  }
  CHECK(wrong == 0);
}

// The Outcome messages of one step, as the supervisor encodes them.
struct ToldRanks {
  explicit ToldRanks(const Effects& effects) {
    EnvelopeEncoder encoder;
    std::shared_ptr<const std::string> last;
    for (const auto& effect : effects) {
      const auto* const send = std::get_if<Send>(&effect);
      const auto* const outcome = send ? std::get_if<Outcome>(&send->body) : nullptr;
      if (outcome == nullptr) continue;
      ++ranks;
      endings.insert(outcome->ending);
      Envelope envelope;
      envelope.attempt = {kIncarnation, "main", send->counter};
      envelope.body = *outcome;
      const EncodedEnvelope encoded = encoder.encode(envelope);
      bytes += encoded.own.size();
      if (encoded.shared != last) bytes += encoded.shared->size();
      last = encoded.shared;
      heard = encoded.own + *encoded.shared;
    }
  }
  int ranks = 0;
  std::set<std::shared_ptr<const Ending>> endings;
  std::size_t bytes = 0;  // encoded; a part that ranks share counts once
  std::string heard;      // the last rank's message
};

// Lets all ranks join and fail. Returns the effects of the last failure; `allocated` is the number
// of bytes allocated for it.
Effects fail_on_all_ranks(CoordinatorSteps& coordinator, int ranks, std::uint64_t ticket, Texts texts, std::size_t& allocated) {
  coordinator.join(ticket);
  Effects effects;
  for (int rank = 0; rank < ranks; ++rank) {
    const Event event = Received{rank, coordinator.machine().counter(), PhaseFailed{long_failure(rank, texts)}};
    const AllocationMeter meter;
    effects = coordinator.step(event);
    allocated = meter.bytes();
  }
  return effects;
}

TEST_CASE("a failure of all ranks is kept and encoded once for all of them") {
  for (const int ranks : {1024, 4096}) {
    for (const Texts texts : {Texts::kEqual, Texts::kByRank}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(texts));
      CoordinatorSteps coordinator(ranks);
      std::size_t allocated = 0;
      const Effects effects = fail_on_all_ranks(coordinator, ranks, 1, texts, allocated);
      CHECK(allocated < 16 * kMiB);
      const ToldRanks told(effects);
      CHECK(told.ranks == ranks);
      CHECK(told.endings.size() == 1);
      CHECK(told.bytes < (texts == Texts::kEqual ? kMiB / 8 : 2 * kMiB) + static_cast<std::size_t>(ranks) * 128);
      const auto heard = std::get<Outcome>(decode(told.heard).body);
      check_tells_of_all(ungrouped(heard.ending->failures), ranks, texts);
      // The decoded text is exactly what ranks in this process hear.
      CHECK(ungrouped(heard.ending->failures) == ungrouped((*told.endings.begin())->failures));
    }
  }
}

TEST_CASE("when all ranks cancel a call by their deadlines, they name one cause") {
  constexpr int kRanks = 64;
  CoordinatorSteps coordinator(kRanks);
  coordinator.plan(1);
  Effects effects;
  for (int rank = 0; rank < kRanks; ++rank) {
    Failure failure = make_failure(rank, Phase::kWrite, FailureKind::kCancelled, ErrorCode::kDeadline, "trainer", "too late");
    coordinator.receive(rank, Cancel{1, failure, true});
    effects = coordinator.written(rank);  // a rank that is done is no longer waited for
  }
  const ToldRanks told(effects);
  REQUIRE(told.endings.size() == 1);
  const auto& groups = (*told.endings.begin())->failures;
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].members.size() == kRanks);
  CHECK(groups[0].cause.what.find("was waiting for ranks 0") != std::string::npos);
}

TEST_CASE("memory for calls that failed on all ranks is bounded") {
  constexpr int kRanks = 1024;
  for (const Texts texts : {Texts::kEqual, Texts::kByRank}) {
    CAPTURE(static_cast<int>(texts));
    CoordinatorSteps coordinator(kRanks);
    RankSteps rank(1, kRanks);
    const AllocationMeter meter;
    std::ptrdiff_t first = 0;
    for (std::uint64_t call = 1; call <= 18; ++call) {
      rank.step(call_of(call));
      FailureMap failures;
      for (int index = 0; index < kRanks; ++index) failures.emplace(index, long_failure(index, texts));
      const Outcome outcome{call, make_ending(failures, Committed::kNo, "id")};
      CHECK(all_of<CallResult>(rank.receive(0, outcome, 0)).at(0).failures.size() == kRanks);
      coordinator.join(call);
      for (int index = 0; index < kRanks; ++index) coordinator.receive(index, PhaseFailed{long_failure(index, texts)});
      if (call == 1) first = meter.held();
    }
    // Each call keeps two endings and the tickets of its ranks.
    const auto each = static_cast<std::ptrdiff_t>(texts == Texts::kEqual ? kMiB / 4 : 4 * kMiB);
    CHECK(meter.held() - first < 16 * each);
  }
}

// Returns the number of allocations on rank 0 while all ranks join one call that `coordinator`
// coordinates.
std::size_t allocations_of_joins(int ranks, int coordinator) {
  CoordinatorSteps steps(ranks);
  std::size_t allocations = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Event event = Received{rank, 0, join_of(1, Operation::kSave, coordinator, ranks)};
    const AllocationMeter meter;
    steps.step(event);
    allocations += meter.allocations();
  }
  return allocations;
}

TEST_CASE("a Join costs the same however many ranks have joined before") {
  for (const int coordinator : {0, 1}) {
    CAPTURE(coordinator);
    CHECK(allocations_of_joins(8000, coordinator) < 10 * allocations_of_joins(1000, coordinator));
  }
}

TEST_CASE("the registrar finds one differing rank of thousands, telling each once") {
  constexpr int kRanks = 4096;
  for (const int other : {0, 1, 2000, kRanks - 1}) {
    CAPTURE(other);
    CoordinatorSteps registrar(kRanks);
    std::map<int, int> told;
    std::set<std::shared_ptr<const Ending>> endings;
    for (std::uint64_t again = 0; again < 2; ++again) {
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto effects = registrar.receive(rank, join_of(1, Operation::kSave, rank == other ? 7 : 0, kRanks), 0);
        for (const auto& effect : effects) {
          const auto* const send = std::get_if<Send>(&effect);
          const auto* const outcome = send ? std::get_if<Outcome>(&send->body) : nullptr;
          if (outcome == nullptr) continue;
          ++told[send->to];
          endings.insert(outcome->ending);
        }
      }
      CHECK(told.size() == kRanks);
      CHECK(endings.size() == 1);
      for (const auto& [rank, times] : told)
        if (times != 1 + static_cast<int>(again)) FAIL("rank ", rank, " was told ", times, " times");  // a Join is answered again
    }
    const FailureMap failures = ungrouped((*endings.begin())->failures);
    CHECK(failures.count(other == 0 ? 1 : other) == 1);
    CHECK(registrar.machine().is_idle());
  }
}

TEST_CASE("a successor tells thousands of ranks one outcome") {
  constexpr int kRanks = 4096;
  CoordinatorSteps successor(kRanks, 1);
  const auto orphan = [](int rank, std::uint64_t inquiry) {
    StatusReply status;
    status.inquiry = inquiry;
    status.kind = RankStatus::kOrphaned;
    status.ticket = status.ordinal = 1;
    status.checkpoint_id = "step_1";
    status.lost = failure_on(0, "gone");
    status.failure = long_failure(rank, Texts::kByRank);
    return status;
  };
  const auto asked = sent<StatusRequest>(successor.receive(1, orphan(1, 0), 5));
  REQUIRE(asked.size() == kRanks);
  for (int rank = 1; rank < kRanks; ++rank) successor.receive(rank, orphan(rank, asked[0].second.inquiry), 5);
  const Event time_is_over = TimerFired{Timer::kSuccession};
  const AllocationMeter meter;
  const Effects effects = successor.step(time_is_over);
  CHECK(meter.bytes() < 128 * kMiB);  // only one map of full texts is built
  const ToldRanks told(effects);
  CHECK(told.ranks == kRanks - 1);
  CHECK(told.endings.size() == 1);
  CHECK(told.bytes < 2 * kMiB + kRanks * 128);
}

TEST_CASE("texts are cut the longest first, and only if all of them together are too long") {
  FailureMap failures;
  for (int rank = 0; rank < 100; ++rank) failures.emplace(rank, failure_on(rank, "short, of rank " + std::to_string(rank)));
  for (int rank = 100; rank < 300; ++rank) failures.emplace(rank, long_failure(rank, Texts::kByRank));
  for (int rank = 298; rank < 300; ++rank) {  // in one of the two, the cut falls inside a character
    failures.at(rank).what.assign(static_cast<std::size_t>(rank), 'a');
    while (failures.at(rank).what.size() < 15998) failures.at(rank).what += "\xc3\xa4";
  }
  for (int rank = 300; rank < 400; ++rank) failures.emplace(rank, long_failure(rank, Texts::kEqual));
  const FailureMap bounded = ungrouped(grouped(failures));
  REQUIRE(bounded.size() == failures.size());
  std::size_t bytes = 0;
  std::set<std::size_t> lengths;
  for (const auto& [rank, failure] : bounded) {
    if (rank < 100) CHECK(failure == failures.at(rank));
    if (rank <= 300) bytes += failure.what.size();
    if (rank >= 100 && rank != 298 && rank != 299) lengths.insert(failure.what.size());
  }
  CHECK(lengths.size() == 1);
  CHECK(bytes <= kGroupedTextMax);
  CHECK(bytes > kGroupedTextMax - 16 * 1024);
  CHECK(bounded.at(100).what.substr(bounded.at(100).what.size() - 8) == "xx [...]");
  for (int rank = 298; rank < 300; ++rank)
    CHECK(bounded.at(rank).what.substr(bounded.at(rank).what.size() - 8) == "\xc3\xa4 [...]");

  failures.erase(failures.find(160), failures.end());  // leaves 60 long ones
  CHECK(ungrouped(grouped(failures)) == failures);
}

TEST_CASE("texts and types of all ranks together stay within their limit") {
  constexpr std::size_t kRanks = 4096;
  Failure failure = failure_on(0, std::string(kFailureTextMax, 'x'));
  failure.type = std::string(kFailureTextMax, 'y');
  FailureMap failures;
  for (std::size_t rank = 0; rank < kRanks; ++rank) failures.emplace(static_cast<int>(rank), failure);
  const auto groups = grouped(failures);
  REQUIRE(groups.size() == 1);
  const std::size_t bytes = kRanks * (groups[0].cause.what.size() + groups[0].cause.type.size());
  CHECK(bytes <= kUngroupedTextMax);
  CHECK(bytes > kUngroupedTextMax - kRanks * 2);
}

}  // namespace
}  // namespace cairn::test
