// Envelopes to bytes and back: every message that the state machines exchange.
#include <cairn/tests/support/plain.hpp>

#include <string>
#include <vector>

#include <envelope.pb.h>

#include <cairn/messages/codec.hpp>
#include <cairn/tests/messages/corruption.hpp>

namespace cairn::protocol {
namespace {

using testing::each_flip;
using testing::each_truncation;
using testing::is_corrupt;

Digest digest_of(char c) {
  Digest digest{};
  digest.fill(static_cast<Digest::value_type>(c));
  return digest;
}

Failure failure_of(int rank) {
  Failure failure;
  failure.rank = rank;
  failure.phase = Phase::kWrite;
  failure.kind = FailureKind::kBusy;
  failure.code = ErrorCode::kDeadline;
  failure.type = "std::runtime_error";
  failure.what = "text with \xff bytes";
  failure.actor = "storage";
  failure.trace_position = 77;
  return failure;
}

Outcome outcome_of(std::uint64_t ticket) {
  Outcome outcome;
  outcome.ticket = ticket;
  outcome.failures.emplace(0, failure_of(0));
  outcome.failures.emplace(3, failure_of(3));
  outcome.committed = Committed::kUnknown;
  outcome.save_id = "cairn-1";
  return outcome;
}

Standing standing_of(StandingKind kind) {
  Standing standing;
  standing.inquiry = 4;
  standing.kind = kind;
  standing.coordinator_rank = 2;
  standing.ticket = 5;
  standing.ordinal = 6;
  standing.operation = Operation::kLoad;
  standing.checkpoint_id = "step_1";
  standing.busy = true;
  standing.delivered = true;
  standing.leader = 1;
  standing.failure = failure_of(3);
  if (kind == StandingKind::kOrphaned) standing.lost = failure_of(2);
  if (kind == StandingKind::kEnded) standing.outcome = outcome_of(5);
  return standing;
}

std::vector<Message> all_messages() {
  Join join;
  join.ticket = 1;
  join.ordinal = 2;
  join.operation = Operation::kLoad;
  join.checkpoint_id = "step_1";
  join.options_digest = digest_of('o');
  join.stateful_keys = {"b", "a"};
  join.counter_seen = 3;
  join.world_size = 4;
  join.coordinator_rank = -7;
  auto plan = std::make_shared<SavePlan>();
  auto load_plan = std::make_shared<LoadPlan>();
  auto results = std::make_shared<WriteResults>();
  results->files.push_back({"file", 10, 2, 3, {4}});
  return {join,
          Begin{1, {"a", "b"}},
          Withdraw{1},
          LocalSavePlan{plan, digest_of('a')},
          SameSavePlan{digest_of('b'), {1, 2}, {3, 4}},
          NeedLocalPlan{digest_of('c')},
          GlobalSavePlan{plan, digest_of('d'), true},
          UseCachedPlan{digest_of('e'), true},
          NeedGlobalPlan{digest_of('f')},
          Written{results},
          LocalLoadPlan{load_plan, "save"},
          GlobalLoadPlan{load_plan},
          ReadDone{},
          PhaseFailed{failure_of(1)},
          outcome_of(9),
          Cancel{1, failure_of(1)},
          CoordinatorDown{failure_of(0)},
          StopPhase{},
          PhaseStopped{},
          Unreadable{failure_of(1)},
          standing_of(StandingKind::kAbsent),
          standing_of(StandingKind::kEnded),
          standing_of(StandingKind::kAttached),
          standing_of(StandingKind::kPromised),
          standing_of(StandingKind::kOrphaned),
          AskStanding{3, 1, 2, Operation::kLoad, "step_1"},
          FollowOther{-1}};
}

Envelope envelope_of(Message body) {
  Envelope envelope;
  envelope.attempt = {"0123456789abcdef0123456789abcdef", "main", 8};
  envelope.sender = 2;
  envelope.id = 10;
  envelope.cause = 11;
  envelope.body = std::move(body);
  return envelope;
}

TEST_CASE("every message survives encoding") {
  for (const auto& message : all_messages()) {
    CAPTURE(name_of(message));
    const std::string bytes = encode(envelope_of(message));
    const Envelope decoded = decode(bytes);
    CHECK(decoded.attempt.checkpointer == "main");
    CHECK(decoded.attempt.counter == 8);
    CHECK(decoded.sender == 2);
    CHECK(decoded.id == 10);
    CHECK(decoded.cause == 11);
    CHECK(decoded.body.index() == message.index());
    CHECK(encode(decoded) == bytes);
  }
}

TEST_CASE("what messages say is what they said") {
  const auto join = std::get<Join>(decode(encode(envelope_of(all_messages()[0]))).body);
  CHECK(join.coordinator_rank == -7);
  CHECK(join.stateful_keys == std::vector<std::string>{"b", "a"});
  const auto standing = std::get<Standing>(decode(encode(envelope_of(standing_of(StandingKind::kOrphaned)))).body);
  CHECK(standing.kind == StandingKind::kOrphaned);
  CHECK(standing.coordinator_rank == 2);
  CHECK(standing.busy);
  CHECK(standing.delivered);
  CHECK((standing.lost == failure_of(2)));
  CHECK((standing.failure == failure_of(3)));
  CHECK_FALSE(standing.outcome.has_value());
  const auto ended = std::get<Standing>(decode(encode(envelope_of(standing_of(StandingKind::kEnded)))).body);
  REQUIRE(ended.outcome.has_value());
  CHECK((ended.outcome->failures == outcome_of(5).failures));
  CHECK(std::get<FollowOther>(decode(encode(envelope_of(FollowOther{-1}))).body).leader == -1);
}

TEST_CASE("spoilt envelopes are refused or harmless") {
  for (const auto& message : all_messages()) {
    const std::string bytes = encode(envelope_of(message));
    const auto use = [](const Bytes& spoilt) { decode(spoilt); };
    each_truncation(bytes, use);
    each_flip(bytes, use);
  }
}

// Encodes, lets `change` spoil the Protobuf message, decodes.
template <class Change>
auto decoding(const Message& message, Change change) {
  v1::Envelope envelope;
  envelope.ParseFromString(encode(envelope_of(message)));
  change(envelope);
  return [bytes = envelope.SerializeAsString()] { decode(bytes); };
}

TEST_CASE("fields that are missing or contradict each other are named") {
  const auto ended = standing_of(StandingKind::kEnded);
  CHECK(is_corrupt(decoding(ended, [](auto& it) { it.mutable_standing()->clear_outcome(); }), "without an outcome"));
  CHECK(is_corrupt(decoding(ended, [](auto& it) { it.mutable_standing()->clear_kind(); }), "enumeration"));
  CHECK(is_corrupt(decoding(ended, [](auto& it) { it.mutable_standing()->set_leader(-2); }), "rank is out of bounds"));
  const auto orphaned = standing_of(StandingKind::kOrphaned);
  CHECK(is_corrupt(decoding(orphaned, [](auto& it) { it.mutable_standing()->clear_lost(); }), "does not say how"));
  CHECK(is_corrupt(decoding(orphaned, [](auto& it) { it.mutable_standing()->clear_ticket(); }), "no ticket"));
  CHECK(is_corrupt(decoding(Withdraw{1}, [](auto& it) { it.mutable_withdraw()->clear_ticket(); }), "ticket is 0"));
  CHECK(is_corrupt(decoding(Unreadable{failure_of(1)}, [](auto& it) { it.mutable_unreadable()->clear_failure(); }), "enumeration"));
  CHECK(is_corrupt(decoding(StopPhase{}, [](auto& it) { it.clear_stop_phase(); }), "no body"));
}

TEST_CASE("a message of a later version, with fields that nobody knows, is read") {
  v1::Envelope envelope;
  envelope.ParseFromString(encode(envelope_of(Withdraw{1})));
  envelope.mutable_withdraw()->GetReflection()->MutableUnknownFields(envelope.mutable_withdraw())->AddVarint(999, 1);
  CHECK(std::get<Withdraw>(decode(envelope.SerializeAsString()).body).ticket == 1);
}

}  // namespace
}  // namespace cairn::protocol
