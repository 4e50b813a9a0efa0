// Random messages of every kind, with every kind of valid content.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/random.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/messages/failure_groups.hpp>
#include <cairn/tests/messages/random_plans.hpp>

namespace cairn::protocol {

inline constexpr std::size_t kKinds = std::variant_size_v<Message>;

inline Digest random_digest(Random& random) {
  Digest digest;
  for (auto& byte : digest) byte = static_cast<std::uint8_t>(random.next());
  return digest;
}

inline Failure random_failure(Random& random, int rank) {
  Failure failure;
  failure.rank = rank;
  failure.phase = static_cast<Phase>(1 + random.next() % 6);
  failure.kind = static_cast<FailureKind>(1 + random.next() % 6);
  failure.code = static_cast<ErrorCode>(1 + random.next() % static_cast<unsigned>(ErrorCode::kInternal));
  failure.type = testing::random_text(random, 30);
  failure.what = testing::random_text(random, 200);
  failure.actor = "storage";
  failure.trace_position = random.next();
  failure.process = testing::random_text(random, 20);
  return failure;
}

inline std::vector<std::string> random_texts(Random& random, std::size_t most) {
  std::vector<std::string> texts(random.next() % (most + 1));
  for (std::string& text : texts) text = testing::random_text(random, 20);
  return texts;
}

inline std::uint64_t random_ticket(Random& random) { return 1 + random.next() / 2; }

inline std::shared_ptr<const Ending> random_ending(Random& random) {
  FailureMap failures;
  for (std::uint64_t i = random.next() % 5; i > 0; --i) {
    const int rank = static_cast<int>(random.next() % (kRanksMax - 2));
    const Failure failure = random_failure(random, rank);
    for (int of_same_cause = 0; of_same_cause < 3; ++of_same_cause) {
      Failure& one = failures[rank + of_same_cause] = failure;
      one.rank = rank + of_same_cause;
      one.trace_position = random.next();
    }
  }
  return make_ending(failures, static_cast<Committed>(1 + random.next() % 3), "cairn-" + std::to_string(random.next()),
                     testing::random_text(random, 40));
}

inline Operation random_operation(Random& random) { return static_cast<Operation>(1 + random.next() % 3); }

inline StatusReply random_standing(Random& random) {
  StatusReply status;
  status.inquiry = random.next();
  status.kind = static_cast<RankStatus>(1 + random.next() % 5);
  status.coordinator_rank = static_cast<int>(random.next() % kRanksMax);
  status.ticket = random_ticket(random);
  status.ordinal = random.next();
  status.operation = random_operation(random);
  status.checkpoint_id = testing::random_text(random, 60);
  status.busy = random.next() % 2 == 0;
  status.delivered = random.next() % 2 == 0;
  status.cannot_join = random.next() % 2 == 0;
  status.leader = static_cast<int>(random.next() % kRanksMax) - 1;
  if (random.next() % 2 == 0) status.failure = random_failure(random, 3);
  if (status.kind == RankStatus::kOrphaned) status.lost = random_failure(random, 0);
  if (status.kind == RankStatus::kEnded) status.ending = random_ending(random);
  return status;
}

inline Moved random_moved(Random& random) {
  Moved moved;
  moved.items = random.next();
  moved.items_done = moved.items - random.next() % (moved.items / 2 + 1);
  moved.bytes = random.next();
  moved.bytes_done = random.next() % (moved.bytes / 2 + 1);
  return moved;
}

inline std::shared_ptr<const LoadPlan> random_load_plan_or_none(Random& random) {
  return random.next() % 4 == 0 ? nullptr : std::make_shared<const LoadPlan>(testing::random_load_plan(random));
}

// Returns a random message of the kind at `index` of the variant.
inline Message random_body(Random& random, std::size_t index) {
  static_assert(kKinds == 23, "a new message is made here, compared below, and has its round trip");
  switch (index) {
    case 0: {
      Join join;
      join.ticket = random_ticket(random);
      join.ordinal = random.next();
      join.operation = random_operation(random);
      join.checkpoint_id = testing::random_text(random, 100);
      join.options_digest = random_digest(random);
      join.stateful_keys = random_texts(random, 4);
      join.counter_seen = random.next() / 2;
      join.world_size = static_cast<std::uint32_t>(1 + random.next() % kRanksMax);
      join.coordinator_rank = static_cast<int>(random.next() % 1000) - 500;  // any number that a caller may pass
      join.text = testing::random_text(random, 100);
      return join;
    }
    case 1:
      return Begin{random_ticket(random), random_texts(random, 4)};
    case 2:
      return LocalSavePlan{std::make_shared<const SavePlan>(testing::random_save_plan(random)), random_digest(random)};
    case 3: {
      SameSavePlan same{random_digest(random), {}, {}};
      for (std::uint64_t i = random.next() % 5; i > 0; --i) {
        same.content_hashes.push_back(random.next());
        if (random.next() % 4 != 0) same.content_bytes.push_back(random.next());
      }
      return same;
    }
    case 4:
      return NeedLocalPlan{random_digest(random)};
    case 5:
      if (random.next() % 2 == 0) return GlobalSavePlan{nullptr, std::make_shared<const PlanPart>(testing::random_part(random))};
      return GlobalSavePlan{std::make_shared<const SavePlan>(testing::random_save_plan(random)), nullptr};
    case 6:
      return Written{std::make_shared<const WriteResults>(testing::random_results(random))};
    case 7:
      return LocalLoadPlan{random_load_plan_or_none(random), testing::random_text(random, 80)};
    case 8:
      return GlobalLoadPlan{random_load_plan_or_none(random)};
    case 9:
      return ReadDone{};
    case 10:
      return PhaseFailed{random_failure(random, static_cast<int>(random.next() % kRanksMax))};
    case 11:
      return Outcome{random_ticket(random), random_ending(random)};
    case 12:
      return Cancel{random_ticket(random), random_failure(random, 3), random.next() % 2 == 0};
    case 13:
      return CoordinatorDown{random_failure(random, 0), random.next() % 2 == 0 ? 0 : random_ticket(random)};
    case 14:
      return StopPhase{};
    case 15:
      return PhaseStopped{};
    case 16:
      return Withdraw{random_ticket(random)};
    case 17:
      return Unreadable{random_failure(random, 5)};
    case 18:
      return random_standing(random);
    case 19:
      return StatusRequest{{random.next(), random_operation(random), testing::random_text(random, 60)},
                           random.next(),
                           static_cast<int>(random.next() % kRanksMax)};
    case 20:
      return FollowOther{static_cast<int>(random.next() % kRanksMax) - 1};
    case 21:
      return Progress{random_ticket(random), random_moved(random)};
    default: {
      JobProgress job;
      job.number = random_ticket(random);
      job.phase = static_cast<Phase>(1 + random.next() % 6);
      job.ranks_done = static_cast<int>(random.next() % kRanksMax);
      job.moved = random_moved(random);
      job.slowest_rank = static_cast<int>(random.next() % kRanksMax) - 1;
      job.slowest = random_moved(random);
      return job;
    }
  }
}

inline Envelope random_envelope(Random& random, std::size_t index) {
  Envelope envelope;
  envelope.attempt.incarnation = random_hex(random, 128);
  envelope.attempt.checkpointer = testing::random_text(random, 20);
  envelope.attempt.counter = random.next();
  envelope.sender = static_cast<int>(random.next() % kRanksMax);
  envelope.id = random.next();
  envelope.cause = random.next();
  envelope.body = random_body(random, index);
  return envelope;
}

}  // namespace cairn::protocol
