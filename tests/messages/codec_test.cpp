// Envelopes with every kind of message: corruption first, then the round trip.
#include <cairn/tests/support/plain.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/messages/envelope.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/messages/failure_groups.hpp>
#include <cairn/tests/messages/corruption.hpp>
#include <cairn/tests/messages/random_messages.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::protocol {
namespace {

using testing::check_equal;
using testing::is_corrupt;
using testing::Saying;
using testing::thrown_by;

bool same_processes(const FailureMap& a, const FailureMap& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& one, const auto& other) { return one.second.process == other.second.process; });
}

bool same_ending(const std::shared_ptr<const Ending>& a, const std::shared_ptr<const Ending>& b) {
  if (!a || !b) return a == b;
  return a->failures.size() == b->failures.size() && ungrouped(a->failures) == ungrouped(b->failures) &&
         same_processes(ungrouped(a->failures), ungrouped(b->failures)) && a->committed == b->committed &&
         a->save_id == b->save_id && a->answer == b->answer;
}

struct SameBody {
  bool operator()(const Join& a, const Join& b) const {
    return a.ticket == b.ticket && a.ordinal == b.ordinal && a.operation == b.operation && a.checkpoint_id == b.checkpoint_id &&
           a.options_digest == b.options_digest && a.stateful_keys == b.stateful_keys && a.counter_seen == b.counter_seen &&
           a.world_size == b.world_size && a.coordinator_rank == b.coordinator_rank && a.text == b.text;
  }
  bool operator()(const Begin& a, const Begin& b) const { return a.ticket == b.ticket && a.key_order == b.key_order; }
  bool operator()(const LocalSavePlan& a, const LocalSavePlan& b) const {
    check_equal(*a.plan, *b.plan);
    return a.digest == b.digest;
  }
  bool operator()(const SameSavePlan& a, const SameSavePlan& b) const {
    return a.digest == b.digest && a.content_hashes == b.content_hashes && a.content_bytes == b.content_bytes;
  }
  bool operator()(const NeedLocalPlan& a, const NeedLocalPlan& b) const { return a.digest == b.digest; }
  bool operator()(const GlobalSavePlan& a, const GlobalSavePlan& b) const {
    if (a.plan && b.plan) check_equal(*a.plan, *b.plan);
    if (a.part && b.part) check_equal(*a.part, *b.part);
    return !a.plan == !b.plan && !a.part == !b.part;
  }
  bool operator()(const Written& a, const Written& b) const {
    check_equal(*a.results, *b.results);
    return true;
  }
  bool operator()(const LocalLoadPlan& a, const LocalLoadPlan& b) const {
    if (a.plan && b.plan) check_equal(*a.plan, *b.plan);
    return !a.plan == !b.plan && a.metadata_save_id == b.metadata_save_id;
  }
  bool operator()(const GlobalLoadPlan& a, const GlobalLoadPlan& b) const {
    if (a.plan && b.plan) check_equal(*a.plan, *b.plan);
    return !a.plan == !b.plan;
  }
  bool operator()(const ReadDone&, const ReadDone&) const { return true; }
  bool operator()(const PhaseFailed& a, const PhaseFailed& b) const { return a.failure == b.failure; }
  bool operator()(const Outcome& a, const Outcome& b) const { return a.ticket == b.ticket && same_ending(a.ending, b.ending); }
  bool operator()(const Cancel& a, const Cancel& b) const {
    return a.ticket == b.ticket && a.failure == b.failure && a.awaits_outcome == b.awaits_outcome;
  }
  bool operator()(const CoordinatorDown& a, const CoordinatorDown& b) const {
    return a.failure == b.failure && a.ticket == b.ticket;
  }
  bool operator()(const StopPhase&, const StopPhase&) const { return true; }
  bool operator()(const PhaseStopped&, const PhaseStopped&) const { return true; }
  bool operator()(const Withdraw& a, const Withdraw& b) const { return a.ticket == b.ticket; }
  bool operator()(const Unreadable& a, const Unreadable& b) const { return a.failure == b.failure; }
  bool operator()(const StatusReply& a, const StatusReply& b) const {
    return a.inquiry == b.inquiry && a.kind == b.kind && a.coordinator_rank == b.coordinator_rank && a.ticket == b.ticket &&
           a.ordinal == b.ordinal && a.operation == b.operation && a.checkpoint_id == b.checkpoint_id && a.busy == b.busy &&
           a.delivered == b.delivered && a.cannot_join == b.cannot_join && a.leader == b.leader && a.lost == b.lost &&
           a.failure == b.failure && same_ending(a.ending, b.ending);
  }
  bool operator()(const StatusRequest& a, const StatusRequest& b) const {
    return a.inquiry == b.inquiry && a.coordinator_rank == b.coordinator_rank && a.ordinal == b.ordinal &&
           a.operation == b.operation && a.checkpoint_id == b.checkpoint_id;
  }
  bool operator()(const FollowOther& a, const FollowOther& b) const { return a.leader == b.leader; }
  bool operator()(const Progress& a, const Progress& b) const { return a.number == b.number && a.moved == b.moved; }
  bool operator()(const JobProgress& a, const JobProgress& b) const {
    return a.number == b.number && a.phase == b.phase && a.ranks_done == b.ranks_done && a.moved == b.moved &&
           a.slowest_rank == b.slowest_rank && a.slowest == b.slowest;
  }
  template <class A, class B>
  bool operator()(const A&, const B&) const {
    return false;
  }
};

void check_same(const Envelope& a, const Envelope& b) {
  CHECK(a.attempt.incarnation == b.attempt.incarnation);
  CHECK(a.attempt.checkpointer == b.attempt.checkpointer);
  CHECK(a.attempt.counter == b.attempt.counter);
  CHECK(a.sender == b.sender);
  CHECK(a.id == b.id);
  CHECK(a.cause == b.cause);
  CHECK(std::visit(SameBody{}, a.body, b.body));
}

}  // namespace

TEST_CASE("a failure map names processes unless many ranks failed") {
  const auto random = seeded_random(75);
  for (const int ranks : {static_cast<int>(kProcessesNamedMax), static_cast<int>(kProcessesNamedMax) + 1}) {
    FailureMap failures;
    for (int rank = 0; rank < ranks; ++rank) failures[rank] = random_failure(*random, rank);
    const FailureMap told = ungrouped(grouped(failures));
    CHECK(told == failures);
    CHECK(same_processes(told, failures) == (ranks == static_cast<int>(kProcessesNamedMax)));
  }
}

TEST_CASE("a field that is out of its bounds is refused, and the error says which") {
  using Encoded = v1::Envelope;
  const auto random = seeded_random(74);
  constexpr std::size_t kJoin = 0, kBegin = 1, kSame = 3, kNeed = 4, kGlobal = 5, kFailed = 10, kOutcome = 11, kCancel = 12,
                        kWithdraw = 16, kStatusReply = 18, kAsk = 19, kFollow = 20, kProgress = 21, kJob = 22;
  struct Case {
    const char* reason;
    std::size_t kind;
    std::function<void(Encoded&)> spoil;
  };
  const std::string long_name(kNameBytesMax + 1, 'x');
  const auto add_group = [](Encoded& m, const std::vector<std::uint32_t>& first_ranks,
                            const std::vector<std::uint32_t>& run_lengths, int trace_positions) -> v1::FailureGroup& {
    auto& group = *m.mutable_ending()->add_failures();
    group.mutable_cause()->set_phase(v1::PHASE_JOIN);
    group.mutable_cause()->set_kind(v1::FAILURE_KIND_LOST);
    group.mutable_cause()->set_code(1);
    *group.mutable_first_ranks() = {first_ranks.begin(), first_ranks.end()};
    *group.mutable_run_lengths() = {run_lengths.begin(), run_lengths.end()};
    for (int i = 0; i < trace_positions; ++i) group.add_trace_positions(7);
    return group;
  };
  const std::vector<Case> cases = {
      {"names no attempt", kJoin, [](Encoded& m) { m.clear_attempt(); }},
      {"no body", kJoin, [](Encoded& m) { m.clear_body(); }},
      {"incarnation", kJoin, [](Encoded& m) { m.mutable_attempt()->set_incarnation(std::string(65, 'a')); }},
      {"name is too long", kJoin, [&](Encoded& m) { m.mutable_attempt()->set_checkpointer(long_name); }},
      {"rank is out of bounds", kJoin, [](Encoded& m) { m.set_sender(kRanksMax); }},
      {"ticket is 0", kJoin, [](Encoded& m) { m.mutable_join()->clear_ticket(); }},
      {"unknown value", kJoin, [](Encoded& m) { m.mutable_join()->clear_operation(); }},
      {"unknown value", kJoin, [](Encoded& m) { m.mutable_join()->set_operation(static_cast<v1::Operation>(4)); }},
      {"name is too long", kJoin, [&](Encoded& m) { m.mutable_join()->set_checkpoint_id(long_name); }},
      {"name is too long", kJoin, [&](Encoded& m) { m.mutable_join()->add_stateful_keys(long_name); }},
      {"digest", kJoin, [](Encoded& m) { m.mutable_join()->set_options_digest("short"); }},
      {"counter", kJoin, [](Encoded& m) { m.mutable_join()->set_counter_seen(~0ull); }},
      {"world size", kJoin, [](Encoded& m) { m.mutable_join()->clear_world_size(); }},
      {"world size", kJoin, [](Encoded& m) { m.mutable_join()->set_world_size(kRanksMax + 1); }},
      {"ticket is 0", kBegin, [](Encoded& m) { m.mutable_begin()->clear_ticket(); }},
      {"name is too long", kBegin, [&](Encoded& m) { m.mutable_begin()->add_key_order(long_name); }},
      {"differ in length", kSame, [](Encoded& m) { m.mutable_same_save_plan()->add_content_bytes(1); }},
      {"digest", kNeed, [](Encoded& m) { m.mutable_need_local_plan()->clear_digest(); }},
      {"unknown value", kFailed, [](Encoded& m) { m.mutable_phase_failed()->mutable_failure()->clear_phase(); }},
      {"unknown value", kFailed,
       [](Encoded& m) { m.mutable_phase_failed()->mutable_failure()->set_kind(static_cast<v1::FailureKind>(7)); }},
      {"unknown value", kFailed, [](Encoded& m) { m.mutable_phase_failed()->mutable_failure()->clear_code(); }},
      {"error code", kFailed, [](Encoded& m) { m.mutable_phase_failed()->mutable_failure()->set_code(1000); }},
      {"error code", kFailed, [](Encoded& m) { m.mutable_phase_failed()->mutable_failure()->set_code(~0u); }},
      {"text is too long", kFailed,
       [](Encoded& m) { m.mutable_phase_failed()->mutable_failure()->set_what(std::string(kFailureTextMax + 1, 'w')); }},
      {"unknown value", kFailed, [](Encoded& m) { m.mutable_phase_failed()->clear_failure(); }},
      {"two failures of one rank", kOutcome,
       [&](Encoded& m) {
         m.mutable_ending()->clear_failures();
         for (int i = 0; i < 2; ++i) add_group(m, {0}, {1}, 1);
       }},
      {"as many processes as failures", kOutcome,
       [&](Encoded& m) {
         m.mutable_ending()->clear_failures();
         add_group(m, {0}, {2}, 2).add_processes("process 1");
       }},
      {"first_ranks and run_lengths differ", kOutcome,
       [&](Encoded& m) {
         add_group(m, {0, 2}, {1}, 1);
       }},
      {"out of order", kOutcome,
       [&](Encoded& m) {
         add_group(m, {2, 2}, {1, 1}, 2);
       }},
      {"out of order", kOutcome,
       [&](Encoded& m) {
         add_group(m, {2, 1}, {1, 1}, 2);
       }},
      {"rank is out of bounds", kOutcome, [&](Encoded& m) { add_group(m, {kRanksMax - 1}, {2}, 2); }},
      {"rank is out of bounds", kOutcome, [&](Encoded& m) { add_group(m, {5}, {0}, 0); }},
      {"fewer trace positions", kOutcome, [&](Encoded& m) { add_group(m, {5}, {2}, 1); }},
      {"more trace positions", kOutcome, [&](Encoded& m) { add_group(m, {5}, {2}, 3); }},
      {"more trace positions", kOutcome, [&](Encoded& m) { add_group(m, {}, {}, 0); }},
      {"texts of an outcome are too long", kOutcome,
       [&](Encoded& m) { add_group(m, {0}, {8192}, 8192).mutable_cause()->set_what(std::string(kFailureTextMax, 'w')); }},
      {"texts of an outcome are too long", kOutcome,
       [&](Encoded& m) {
         auto& cause = *add_group(m, {0}, {4000}, 4000).mutable_cause();
         cause.set_what(std::string(kFailureTextMax, 'w'));
         cause.set_type(std::string(1000, 'T'));
       }},
      {"unknown value", kOutcome, [](Encoded& m) { m.mutable_ending()->clear_committed(); }},
      {"a text is too long", kJoin, [](Encoded& m) { m.mutable_join()->set_text(std::string(kAgreementTextMax + 1, 't')); }},
      {"an answer is too long", kOutcome,
       [](Encoded& m) { m.mutable_ending()->set_answer(std::string(kAgreementAnswerMax + 1, 'a')); }},
      {"an ending is missing", kOutcome, [](Encoded& m) { m.clear_ending(); }},
      {"an ending is missing", kCancel, [](Encoded& m) { m.mutable_ending()->set_committed(v1::COMMITTED_NO); }},
      {"ticket is 0", kCancel, [](Encoded& m) { m.mutable_cancel()->clear_ticket(); }},
      {"ticket is 0", kWithdraw, [](Encoded& m) { m.mutable_withdraw()->clear_ticket(); }},
      {"unknown value", kStatusReply, [](Encoded& m) { m.mutable_status_reply()->clear_kind(); }},
      {"rank is out of bounds", kStatusReply, [](Encoded& m) { m.mutable_status_reply()->set_leader(-2); }},
      {"rank is out of bounds", kStatusReply, [](Encoded& m) { m.mutable_status_reply()->set_coordinator_rank(kRanksMax); }},
      {"name is too long", kStatusReply, [&](Encoded& m) { m.mutable_status_reply()->set_checkpoint_id(long_name); }},
      {"does not say how", kStatusReply,
       [](Encoded& m) {
         m.mutable_status_reply()->set_kind(v1::RANK_STATUS_ORPHANED);
         m.mutable_status_reply()->clear_lost();
       }},
      {"an ending is missing", kStatusReply,
       [](Encoded& m) {
         m.mutable_status_reply()->set_kind(v1::RANK_STATUS_ENDED);
         m.mutable_status_reply()->clear_lost();
         m.clear_ending();
       }},
      {"has no ticket", kStatusReply,
       [](Encoded& m) {
         m.mutable_status_reply()->set_kind(v1::RANK_STATUS_ATTACHED);
         m.mutable_status_reply()->clear_lost();
         m.clear_ending();
         m.mutable_status_reply()->clear_ticket();
       }},
      {"a global plan is missing", kGlobal, [](Encoded& m) { m.mutable_global_save_plan()->Clear(); }},
      {"unknown value", kAsk, [](Encoded& m) { m.mutable_status_request()->clear_operation(); }},
      {"rank is out of bounds", kFollow, [](Encoded& m) { m.mutable_follow_other()->set_leader(-2); }},
      {"no number", kProgress, [](Encoded& m) { m.mutable_progress()->clear_number(); }},
      {"more is done", kProgress, [](Encoded& m) { m.mutable_progress()->mutable_moved()->set_items(0); }},
      {"more is done", kProgress,
       [](Encoded& m) {
         m.mutable_progress()->mutable_moved()->set_bytes(1);
         m.mutable_progress()->mutable_moved()->set_bytes_done(2);
       }},
      {"no number", kJob, [](Encoded& m) { m.mutable_job_progress()->clear_number(); }},
      {"unknown value", kJob, [](Encoded& m) { m.mutable_job_progress()->clear_phase(); }},
      {"more ranks", kJob, [](Encoded& m) { m.mutable_job_progress()->set_ranks_done(kRanksMax + 1); }},
      {"rank is out of bounds", kJob, [](Encoded& m) { m.mutable_job_progress()->set_slowest_rank(-2); }},
      {"more is done", kJob, [](Encoded& m) { m.mutable_job_progress()->mutable_slowest()->set_items(0); }},
  };
  for (const auto& [reason, kind, spoil] : cases) {
    const auto& shown = reason;
    CAPTURE(shown);
    v1::Envelope message;
    REQUIRE(message.ParseFromString(encode(random_envelope(*random, kind))));
    spoil(message);
    const std::string bytes = message.SerializeAsString();
    CHECK(is_corrupt([&] { decode(bytes); }, reason));
  }
}

TEST_CASE("a message that no rank could read is not sent") {
  const auto random = seeded_random(75);
  const std::string long_name(kNameBytesMax + 1, 'x');
  const std::pair<std::size_t, std::function<void(Envelope&)>> cases[] = {
      {0, [&](Envelope& envelope) { envelope.attempt.checkpointer = long_name; }},
      {0, [&](Envelope& envelope) { std::get<Join>(envelope.body).checkpoint_id = long_name; }},
      {0, [&](Envelope& envelope) { std::get<Join>(envelope.body).stateful_keys.push_back(long_name); }},
      {1, [&](Envelope& envelope) { std::get<Begin>(envelope.body).key_order.push_back(long_name); }},
      {7, [&](Envelope& envelope) { std::get<LocalLoadPlan>(envelope.body).metadata_save_id = long_name; }},
  };
  for (const auto& [kind, spoil] : cases) {
    Envelope envelope = random_envelope(*random, kind);
    spoil(envelope);
    CHECK(thrown_by([&] { encode(envelope); }) == Saying{ErrorCode::kInvalidArgument, "65536"});
  }
}

TEST_CASE("texts of a failure are cut to what travels") {
  Failure failure;
  failure.type = failure.what = std::string(kFailureTextMax + 100, 'w');
  Envelope envelope;
  envelope.body = PhaseFailed{failure};
  const Failure back = std::get<PhaseFailed>(decode(encode(envelope)).body).failure;
  CHECK(back.type.size() == kFailureTextMax);
  CHECK(back.what.size() == kFailureTextMax);
}

TEST_CASE("one cause of many ranks travels once, with the place in each rank's trace") {
  FailureMap failures;
  for (int rank = 0; rank < 3; ++rank) {
    Failure failure;
    failure.rank = rank;
    failure.what = "no space left";
    failure.trace_position = 100 + static_cast<std::uint64_t>(rank);
    failures.emplace(rank, failure);
  }
  const auto groups = grouped(failures);
  CHECK(groups.size() == 1);
  CHECK(ungrouped(groups) == failures);
}

TEST_CASE("texts of many causes are cut to the limit, between characters") {
  FailureMap failures;
  for (int rank = 0; rank < 100; ++rank) {
    Failure failure;
    failure.rank = rank;
    failure.what = std::string(static_cast<std::size_t>(rank % 3), 'x') + std::to_string(1000 + rank);
    while (failure.what.size() + 3 <= kFailureTextMax) failure.what += "\u20ac";
    failures.emplace(rank, failure);
  }
  for (const auto& group : grouped(failures)) {
    CHECK(group.cause.what.size() <= kGroupedTextMax / 100);
    CHECK(group.cause.what.find(" [...]") != std::string::npos);
    CHECK(is_utf8(group.cause.what));
  }
}

TEST_CASE("decoded plans of ranks with equal names and paths share memory") {
  constexpr int kStages = 3;
  const auto encoded_plan = [](int rank, const char* first_step) {
    SavePlan plan;
    for (int tensor = 0; tensor < 100; ++tensor) {
      WriteItem item;
      item.name = plan.names.intern("model." + std::to_string(rank % kStages) + "." + std::to_string(tensor));
      item.type = WriteItemType::kShard;
      item.size = {64, 8};
      item.chunk = {{rank, 0}, {1, 8}};
      plan.items.push_back(item);
      plan.mappings.edit().emplace_back(item.name, Path{first_step, plan.names[item.name].substr(6)});
    }
    Envelope envelope;
    envelope.body = LocalSavePlan{std::make_shared<const SavePlan>(std::move(plan)), {}};
    return encode(envelope);
  };
  EnvelopeDecoder decoder;
  const auto decoded = [&](int rank, const char* first_step = "model") {
    return std::get<LocalSavePlan>(decoder.decode(encoded_plan(rank, first_step)).body).plan;
  };
  std::vector<std::shared_ptr<const SavePlan>> plans;
  for (int rank = 0; rank < 64; ++rank) {
    CAPTURE(rank);
    plans.push_back(decoded(rank));
    check_equal(*plans.back(), *std::get<LocalSavePlan>(decode(encoded_plan(rank, "model")).body).plan);
    CHECK(plans.back()->names.shares_with(plans[static_cast<std::size_t>(rank % kStages)]->names));
    CHECK(plans.back()->mappings.shares_with(plans[static_cast<std::size_t>(rank % kStages)]->mappings));
  }
  // Equal names with other paths.
  const auto other = decoded(0, "renamed");
  CHECK(other->names.all() == plans[0]->names.all());
  CHECK(std::get<std::string>((*other->mappings)[0].second[0]) == "renamed");
  CHECK(std::get<std::string>((*plans[0]->mappings)[0].second[0]) == "model");
}

TEST_CASE("decoded plans keep names apart that differ only in the beginning they share with the one before") {
  EnvelopeDecoder decoder;
  for (const char* second : {"abc", "ac"}) {
    SavePlan plan;
    for (const char* name : {"ab", second}) plan.items.emplace_back().name = plan.names.intern(name);
    Envelope envelope;
    envelope.body = LocalSavePlan{std::make_shared<const SavePlan>(plan), {}};
    CHECK(std::get<LocalSavePlan>(decoder.decode(encode(envelope)).body).plan->names.all() == plan.names.all());
  }
}

TEST_CASE("every message survives the journey") {
  const auto random = seeded_random(76);
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    for (int round = 0; round < 100; ++round) {
      const Envelope envelope = random_envelope(*random, kind);
      REQUIRE(envelope.body.index() == kind);
      INFO(std::string(name_of(envelope.body)), ", round ", round);
      const Bytes bytes = encode(envelope);
      const Envelope back = decode(bytes);
      check_same(envelope, back);
      CHECK(encode(back) == bytes);
      const std::string later = {'\xFA', '\x06', '\x03', 'x', 'y', 'z'};  // field 111, three bytes, as from a later version
      check_same(envelope, decode(bytes + later));
    }
  }
}

}  // namespace cairn::protocol
