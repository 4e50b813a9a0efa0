#include <cairn/messages/codec.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include <cairn/messages/envelope.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/messages/columns.hpp>
#include <cairn/messages/plan_codec.hpp>

namespace cairn::protocol {
namespace {

constexpr char kWhat[] = "message of another rank";
constexpr int kErrorCodeMax = static_cast<int>(ErrorCode::kInternal);

// Bytes come from the network. Every value is checked before it is used as a size, an index or an
// enumeration.
void check(bool valid, const char* reason) { columns::check_decode(valid, kWhat, reason); }

int rank_of(std::uint32_t rank) {
  check(rank < kRanksMax, "a rank is out of bounds");
  return static_cast<int>(rank);
}

std::uint64_t ticket_of(std::uint64_t ticket) {
  check(ticket != 0, "a ticket is 0");
  return ticket;
}

const std::string& checked_name(const std::string& name) {
  check(name.size() <= kNameBytesMax, "a name is too long");
  return name;
}

// Throws for a name that every receiver would reject, so that the error appears where the name was
// given.
const std::string& sendable(const std::string& name) {
  if (name.size() > kNameBytesMax)
    columns::fail_encode("message", "a name that begins with '" + name.substr(0, 40) + "' has " + std::to_string(name.size()) +
                                        " bytes, and at most " + std::to_string(kNameBytesMax) + " travel: use a shorter one");
  return name;
}

template <class Enum>
Enum enum_of(int value, int max) {
  check(value > 0 && value <= max, "an enumeration has an unknown value");
  return static_cast<Enum>(value);
}

void set_digest(const Digest& digest, std::string* field) {
  field->assign(reinterpret_cast<const char*>(digest.data()), digest.size());
}

Digest digest_of(const std::string& bytes) {
  Digest digest;
  check(bytes.size() == digest.size(), "a digest does not have 32 bytes");
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(digest.data()));
  return digest;
}

template <class Message>
void set_call(const NamedCall& record, Message& message) {
  message.set_ordinal(record.ordinal);
  message.set_operation(static_cast<v1::Operation>(record.operation));
  message.set_checkpoint_id(record.checkpoint_id);
}
template <class Message>
void get_call(const Message& message, NamedCall& record) {
  record.ordinal = message.ordinal();
  record.operation = enum_of<Operation>(message.operation(), v1::Operation_MAX);
  record.checkpoint_id = checked_name(message.checkpoint_id());
}

void to_proto(const Failure& failure, v1::Failure& message) {
  message.set_rank(static_cast<std::uint32_t>(failure.rank));
  message.set_phase(static_cast<v1::Phase>(failure.phase));
  message.set_kind(static_cast<v1::FailureKind>(failure.kind));
  message.set_code(static_cast<std::uint32_t>(failure.code));
  // Decoders refuse longer texts.
  message.set_type(failure.type.substr(0, kFailureTextMax));
  message.set_what(failure.what.substr(0, kFailureTextMax));
  message.set_actor(failure.actor);
  message.set_trace_position(failure.trace_position);
  message.set_process(failure.process);
}

Failure from_proto(const v1::Failure& message) {
  Failure failure;
  failure.rank = rank_of(message.rank());
  failure.phase = enum_of<Phase>(message.phase(), v1::Phase_MAX);
  failure.kind = enum_of<FailureKind>(message.kind(), v1::FailureKind_MAX);
  // Compared before the cast, which would turn large codes negative.
  check(message.code() <= static_cast<std::uint32_t>(kErrorCodeMax), "an error code is unknown");
  failure.code = enum_of<ErrorCode>(static_cast<int>(message.code()), kErrorCodeMax);
  check(message.type().size() <= kFailureTextMax && message.what().size() <= kFailureTextMax, "a failure's text is too long");
  failure.type = message.type();
  failure.what = message.what();
  failure.actor = checked_name(message.actor());
  failure.trace_position = message.trace_position();
  failure.process = checked_name(message.process());
  return failure;
}

void to_proto(const FailureGroup& group, v1::FailureGroup& message) {
  to_proto(group.cause, *message.mutable_cause());
  // Run-length encoding: failed ranks are mostly consecutive, and a world may have a million.
  int next_rank = -1;
  for (const auto& [rank, trace_position, process] : group.members) {
    if (rank != next_rank) {
      message.add_first_ranks(static_cast<std::uint32_t>(rank));
      message.add_run_lengths(0);
    }
    const int last = message.run_lengths_size() - 1;
    message.set_run_lengths(last, message.run_lengths(last) + 1);
    message.add_trace_positions(trace_position);
    if (group.members.size() <= kProcessesNamedMax) message.add_processes(process);
    next_rank = rank + 1;
  }
}

FailureGroup from_proto(const v1::FailureGroup& message) {
  FailureGroup group;
  group.cause = from_proto(message.cause());
  // The members hold both. A cause that carried its own would differ from one of another group.
  group.cause.rank = 0;
  group.cause.trace_position = 0;
  group.cause.process.clear();
  check(message.first_ranks_size() == message.run_lengths_size(), "first_ranks and run_lengths differ in length");
  const auto count = static_cast<std::size_t>(message.trace_positions_size());
  for (int run = 0; run < message.run_lengths_size(); ++run) {
    const std::size_t length = message.run_lengths(run);
    const std::size_t first = message.first_ranks(run);
    check(group.members.empty() || first > static_cast<std::size_t>(group.members.back().rank),
          "ranks that failed are out of order");
    // A few bytes can name a long run. The checks bound the list before it is built.
    check(length > 0 && first < kRanksMax && length <= kRanksMax - first, "a rank is out of bounds");
    check(length <= count - group.members.size(), "there are fewer trace positions than failures");
    for (std::size_t rank = first; rank < first + length; ++rank)
      group.members.push_back({static_cast<int>(rank), message.trace_positions(static_cast<int>(group.members.size()))});
  }
  check(!group.members.empty() && group.members.size() == count, "there are more trace positions than failures, or no failures");
  const auto processes = static_cast<std::size_t>(message.processes_size());
  check(processes == 0 || (processes == count && count <= kProcessesNamedMax), "there are not as many processes as failures");
  for (std::size_t at = 0; at < processes; ++at) group.members[at].process = checked_name(message.processes(static_cast<int>(at)));
  return group;
}

void to_proto(const Ending& record, v1::Ending& message) {
  for (const auto& group : record.failures) to_proto(group, *message.add_failures());
  message.set_committed(static_cast<v1::Committed>(record.committed));
  message.set_save_id(record.save_id);
  message.set_answer(record.answer);
}

std::shared_ptr<const Ending> from_proto(const v1::Ending& message) {
  auto record = std::make_shared<Ending>();
  std::vector<int> failed;
  std::size_t text = 0;
  for (const auto& it : message.failures()) {
    FailureGroup group = from_proto(it);
    for (const auto& member : group.members) failed.push_back(member.rank);
    // Each member gets a copy of the texts when the groups are expanded, so this bounds memory.
    text += group.members.size() * (group.cause.what.size() + group.cause.type.size());
    check(text <= kUngroupedTextMax, "the texts of an outcome are too long");
    record->failures.push_back(std::move(group));
  }
  std::sort(failed.begin(), failed.end());
  // Ranks are ascending within a group only. One rank in two groups would lose a failure when the
  // groups are expanded.
  check(std::adjacent_find(failed.begin(), failed.end()) == failed.end(), "an outcome has two failures of one rank");
  record->committed = enum_of<Committed>(message.committed(), v1::Committed_MAX);
  record->save_id = checked_name(message.save_id());
  check(message.answer().size() <= kAgreementAnswerMax, "an answer is too long");
  record->answer = message.answer();
  return record;
}

// Returns the message's Ending; null if it has none.
template <class AnyMessage>
auto* ending_in(AnyMessage& body) {
  // Two messages carry an Ending: the outcome itself, and the status reply of a rank that has one.
  auto* const outcome = std::get_if<Outcome>(&body);
  if (outcome != nullptr) return &outcome->ending;
  auto* const status = std::get_if<StatusReply>(&body);
  return status != nullptr && status->kind == RankStatus::kEnded ? &status->ending : nullptr;
}

void to_proto(const Moved& moved, v1::Moved& message) {
  message.set_items(moved.items);
  message.set_items_done(moved.items_done);
  message.set_bytes(moved.bytes);
  message.set_bytes_done(moved.bytes_done);
}

Moved from_proto(const v1::Moved& message) {
  check(message.items_done() <= message.items() && message.bytes_done() <= message.bytes(), "more is done than there is to do");
  return {message.items(), message.items_done(), message.bytes(), message.bytes_done()};
}

// --- bodies to Protobuf --------------------------------------------------------------------------

// Fills the field of the envelope for each kind of message. Records come from Cairn itself. Only
// names, texts and plans that users give are checked.
struct Encoder {
  v1::Envelope& envelope;

  void operator()(const Join& record) const {
    auto& message = *envelope.mutable_join();
    message.set_ticket(record.ticket);
    sendable(record.checkpoint_id);
    set_call(record, message);
    set_digest(record.options_digest, message.mutable_options_digest());
    for (const auto& key : record.stateful_keys) message.add_stateful_keys(sendable(key));
    message.set_counter_seen(record.counter_seen);
    message.set_world_size(record.world_size);
    message.set_coordinator_rank(record.coordinator_rank);
    // Refused here and not by the coordinator, so that the error appears on the rank that gave the
    // text.
    if (record.text.size() > kAgreementTextMax)
      columns::fail_encode("message", "this rank's text for an agreement has " + std::to_string(record.text.size()) +
                                          " bytes; the limit is " + std::to_string(kAgreementTextMax));
    message.set_text(record.text);
  }
  void operator()(const Begin& record) const {
    auto& message = *envelope.mutable_begin();
    message.set_ticket(record.ticket);
    for (const auto& key : record.key_order) message.add_key_order(sendable(key));
  }
  void operator()(const LocalSavePlan& record) const {
    auto& message = *envelope.mutable_local_save_plan();
    cairn::to_proto(*record.plan, *message.mutable_plan());
    set_digest(record.digest, message.mutable_digest());
  }
  void operator()(const SameSavePlan& record) const {
    auto& message = *envelope.mutable_same_save_plan();
    set_digest(record.digest, message.mutable_digest());
    *message.mutable_content_hashes() = {record.content_hashes.begin(), record.content_hashes.end()};
    *message.mutable_content_bytes() = {record.content_bytes.begin(), record.content_bytes.end()};
  }
  void operator()(const NeedLocalPlan& record) const {
    set_digest(record.digest, envelope.mutable_need_local_plan()->mutable_digest());
  }
  void operator()(const GlobalSavePlan& record) const {
    auto& message = *envelope.mutable_global_save_plan();
    if (record.part) return cairn::to_proto(*record.part, *message.mutable_part());
    cairn::to_proto(*record.plan, *message.mutable_plan());
  }
  void operator()(const Written& record) const { cairn::to_proto(*record.results, *envelope.mutable_written()->mutable_results()); }
  void operator()(const LocalLoadPlan& record) const {
    auto& message = *envelope.mutable_local_load_plan();
    if (record.plan) cairn::to_proto(*record.plan, *message.mutable_plan());
    message.set_metadata_save_id(sendable(record.metadata_save_id));
  }
  void operator()(const GlobalLoadPlan& record) const {
    auto& message = *envelope.mutable_global_load_plan();
    if (record.plan) cairn::to_proto(*record.plan, *message.mutable_plan());
  }
  void operator()(const ReadDone&) const { envelope.mutable_read_done(); }
  void operator()(const PhaseFailed& record) const {
    to_proto(record.failure, *envelope.mutable_phase_failed()->mutable_failure());
  }
  // The ending is left to EnvelopeEncoder, which encodes it once for all receivers.
  void operator()(const Outcome& record) const { envelope.mutable_outcome()->set_ticket(record.ticket); }
  void operator()(const Cancel& record) const {
    auto& message = *envelope.mutable_cancel();
    message.set_ticket(record.ticket);
    to_proto(record.failure, *message.mutable_failure());
    message.set_awaits_outcome(record.awaits_outcome);
  }
  void operator()(const CoordinatorDown& record) const {
    to_proto(record.failure, *envelope.mutable_coordinator_down()->mutable_failure());
    envelope.mutable_coordinator_down()->set_ticket(record.ticket);
  }
  void operator()(const StopPhase&) const { envelope.mutable_stop_phase(); }
  void operator()(const PhaseStopped&) const { envelope.mutable_phase_stopped(); }
  void operator()(const Withdraw& record) const { envelope.mutable_withdraw()->set_ticket(record.ticket); }
  void operator()(const Unreadable& record) const { to_proto(record.failure, *envelope.mutable_unreadable()->mutable_failure()); }
  void operator()(const StatusReply& record) const {
    auto& message = *envelope.mutable_status_reply();
    message.set_inquiry(record.inquiry);
    message.set_kind(static_cast<v1::RankStatus>(record.kind));
    message.set_coordinator_rank(static_cast<std::uint32_t>(record.coordinator_rank));
    message.set_ticket(record.ticket);
    set_call(record, message);
    message.set_busy(record.busy);
    message.set_delivered(record.delivered);
    message.set_cannot_join(record.cannot_join);
    message.set_leader(record.leader);
    if (record.lost) to_proto(*record.lost, *message.mutable_lost());
    if (record.failure) to_proto(*record.failure, *message.mutable_failure());
  }
  void operator()(const StatusRequest& record) const {
    auto& message = *envelope.mutable_status_request();
    message.set_inquiry(record.inquiry);
    message.set_coordinator_rank(static_cast<std::uint32_t>(record.coordinator_rank));
    set_call(record, message);
  }
  void operator()(const FollowOther& record) const { envelope.mutable_follow_other()->set_leader(record.leader); }
  void operator()(const Progress& record) const {
    auto& message = *envelope.mutable_progress();
    message.set_number(record.number);
    to_proto(record.moved, *message.mutable_moved());
  }
  void operator()(const JobProgress& record) const {
    auto& message = *envelope.mutable_job_progress();
    message.set_number(record.number);
    message.set_phase(static_cast<v1::Phase>(record.phase));
    message.set_ranks_done(static_cast<std::uint32_t>(record.ranks_done));
    to_proto(record.moved, *message.mutable_moved());
    message.set_slowest_rank(record.slowest_rank);
    to_proto(record.slowest, *message.mutable_slowest());
  }
};

// --- bodies from Protobuf ------------------------------------------------------------------------

Join join_of(const v1::Join& message) {
  Join record;
  record.ticket = ticket_of(message.ticket());
  get_call(message, record);
  record.options_digest = digest_of(message.options_digest());
  for (const auto& key : message.stateful_keys()) record.stateful_keys.push_back(checked_name(key));
  // The coordinator assigns the largest counter seen plus one, which must not overflow.
  check(message.counter_seen() < std::numeric_limits<std::uint64_t>::max(), "an attempt counter is out of bounds");
  record.counter_seen = message.counter_seen();
  check(message.world_size() > 0 && message.world_size() <= kRanksMax, "a world size is out of bounds");
  record.world_size = message.world_size();
  // Not checked here: the coordinator compares it and names the rank that gave a wrong one.
  record.coordinator_rank = message.coordinator_rank();
  check(message.text().size() <= kAgreementTextMax, "a text is too long");
  record.text = message.text();
  return record;
}

Begin begin_of(const v1::Begin& message) {
  Begin record;
  record.ticket = ticket_of(message.ticket());
  for (const auto& key : message.key_order()) record.key_order.push_back(checked_name(key));
  return record;
}

template <class Message>
std::shared_ptr<const LoadPlan> load_plan_of(const Message& message) {
  return message.has_plan() ? std::make_shared<const LoadPlan>(cairn::from_proto(message.plan())) : nullptr;
}

SameSavePlan same_save_plan_of(const v1::SameSavePlan& message) {
  SameSavePlan record;
  record.digest = digest_of(message.digest());
  check(message.content_hashes_size() >= message.content_bytes_size(), "the columns of a plan's bytes objects differ in length");
  record.content_hashes = {message.content_hashes().begin(), message.content_hashes().end()};
  record.content_bytes = {message.content_bytes().begin(), message.content_bytes().end()};
  return record;
}

// Returns a rank, or -1 for none.
int rank_or_none_of(std::int32_t rank) {
  check(rank >= -1 && rank < static_cast<std::int32_t>(kRanksMax), "a rank is out of bounds");
  return rank;
}

StatusReply status_reply_of(const v1::StatusReply& message) {
  StatusReply record;
  record.inquiry = message.inquiry();
  record.kind = enum_of<RankStatus>(message.kind(), v1::RankStatus_MAX);
  record.coordinator_rank = rank_of(message.coordinator_rank());
  record.ticket = message.ticket();
  get_call(message, record);
  record.busy = message.busy();
  record.delivered = message.delivered();
  record.cannot_join = message.cannot_join();
  record.leader = rank_or_none_of(message.leader());
  if (message.has_lost()) record.lost = from_proto(message.lost());
  if (message.has_failure()) record.failure = from_proto(message.failure());
  // Only an orphan has seen the loss of the coordinator.
  check(record.lost.has_value() == (record.kind == RankStatus::kOrphaned), "an orphaned rank does not say how, or another does");
  // A rank that takes part in the call has joined it under a ticket.
  check(record.kind == RankStatus::kAbsent || record.kind == RankStatus::kEnded || record.ticket != 0, "a call has no ticket");
  return record;
}

StatusRequest status_request_of(const v1::StatusRequest& message) {
  StatusRequest record;
  record.inquiry = message.inquiry();
  record.coordinator_rank = rank_of(message.coordinator_rank());
  get_call(message, record);
  return record;
}

Progress progress_of(const v1::Progress& message) {
  check(message.number() != 0, "a progress has no number");
  return {message.number(), from_proto(message.moved())};
}

JobProgress job_progress_of(const v1::JobProgress& message) {
  JobProgress record;
  check(message.number() != 0, "a progress has no number");
  record.number = message.number();
  record.phase = enum_of<Phase>(message.phase(), v1::Phase_MAX);
  check(message.ranks_done() <= kRanksMax, "more ranks are done than a world has");
  record.ranks_done = static_cast<int>(message.ranks_done());
  record.moved = from_proto(message.moved());
  record.slowest_rank = rank_or_none_of(message.slowest_rank());
  record.slowest = from_proto(message.slowest());
  return record;
}

// One case per message, without a default: the compiler reports a message that is missing here.
Message body_of(const v1::Envelope& envelope, SharedNames& seen) {
  switch (envelope.body_case()) {
    case v1::Envelope::kJoin:
      return join_of(envelope.join());
    case v1::Envelope::kBegin:
      return begin_of(envelope.begin());
    case v1::Envelope::kLocalSavePlan: {
      const auto& message = envelope.local_save_plan();
      return LocalSavePlan{std::make_shared<const SavePlan>(cairn::from_proto(message.plan(), seen)), digest_of(message.digest())};
    }
    case v1::Envelope::kSameSavePlan:
      return same_save_plan_of(envelope.same_save_plan());
    case v1::Envelope::kNeedLocalPlan:
      return NeedLocalPlan{digest_of(envelope.need_local_plan().digest())};
    case v1::Envelope::kGlobalSavePlan: {
      const auto& message = envelope.global_save_plan();
      if (message.has_part()) return GlobalSavePlan{nullptr, std::make_shared<const PlanPart>(cairn::from_proto(message.part()))};
      check(message.has_plan(), "a global plan is missing");
      return GlobalSavePlan{std::make_shared<const SavePlan>(cairn::from_proto(message.plan())), nullptr};
    }
    case v1::Envelope::kWritten:
      return Written{std::make_shared<const WriteResults>(cairn::from_proto(envelope.written().results()))};
    case v1::Envelope::kLocalLoadPlan: {
      const auto& message = envelope.local_load_plan();
      return LocalLoadPlan{load_plan_of(message), checked_name(message.metadata_save_id())};
    }
    case v1::Envelope::kGlobalLoadPlan:
      return GlobalLoadPlan{load_plan_of(envelope.global_load_plan())};
    case v1::Envelope::kReadDone:
      return ReadDone{};
    case v1::Envelope::kPhaseFailed:
      return PhaseFailed{from_proto(envelope.phase_failed().failure())};
    case v1::Envelope::kOutcome:
      // `decode` adds the ending, which is a field of the envelope.
      return Outcome{ticket_of(envelope.outcome().ticket()), nullptr};
    case v1::Envelope::kCancel:
      return Cancel{ticket_of(envelope.cancel().ticket()), from_proto(envelope.cancel().failure()),
                    envelope.cancel().awaits_outcome()};
    case v1::Envelope::kCoordinatorDown:
      return CoordinatorDown{from_proto(envelope.coordinator_down().failure()), envelope.coordinator_down().ticket()};
    case v1::Envelope::kStopPhase:
      return StopPhase{};
    case v1::Envelope::kPhaseStopped:
      return PhaseStopped{};
    case v1::Envelope::kWithdraw:
      return Withdraw{ticket_of(envelope.withdraw().ticket())};
    case v1::Envelope::kUnreadable:
      return Unreadable{from_proto(envelope.unreadable().failure())};
    case v1::Envelope::kStatusReply:
      return status_reply_of(envelope.status_reply());
    case v1::Envelope::kStatusRequest:
      return status_request_of(envelope.status_request());
    case v1::Envelope::kFollowOther:
      return FollowOther{rank_or_none_of(envelope.follow_other().leader())};
    case v1::Envelope::kProgress:
      return progress_of(envelope.progress());
    case v1::Envelope::kJobProgress:
      return job_progress_of(envelope.job_progress());
    case v1::Envelope::BODY_NOT_SET:
      break;
  }
  // Protobuf skips a body of a later version, which leaves the envelope without one.
  columns::fail_decode(kWhat, "it has no body that this version knows");
}

}  // namespace

// An outcome goes to every rank of the world, and its failure map may have a megabyte. The part
// that is the same for all is encoded once and shared by the frames.
EncodedEnvelope EnvelopeEncoder::encode(const Envelope& envelope) {
  v1::Envelope message;
  message.mutable_attempt()->set_incarnation(envelope.attempt.incarnation);
  message.mutable_attempt()->set_checkpointer(sendable(envelope.attempt.checkpointer));
  message.mutable_attempt()->set_counter(envelope.attempt.counter);
  message.set_sender(static_cast<std::uint32_t>(envelope.sender));
  message.set_id(envelope.id);
  message.set_cause(envelope.cause);
  std::visit(Encoder{message}, envelope.body);
  EncodedEnvelope encoded{columns::serialize(message, kWhat), nullptr};
  const auto* const ending = ending_in(envelope.body);
  if (ending == nullptr) return encoded;
  // Compares pointers: all receivers of one outcome share its ending. The copy in `ending_` keeps
  // the address from being used again.
  if (ending_ != *ending) {
    // Protobuf parses concatenated messages as one.
    v1::Envelope rest;
    to_proto(**ending, *rest.mutable_ending());
    bytes_ = std::make_shared<const std::string>(columns::serialize(rest, kWhat));
    ending_ = *ending;
  }
  encoded.shared = bytes_;
  return encoded;
}

std::string encode(const Envelope& envelope) {
  EncodedEnvelope encoded = EnvelopeEncoder().encode(envelope);
  if (encoded.shared) encoded.own += *encoded.shared;
  return std::move(encoded.own);
}

EnvelopeDecoder::EnvelopeDecoder() : seen_(std::make_unique<SharedNames>()) {}
EnvelopeDecoder::~EnvelopeDecoder() = default;

Envelope decode(ByteSpan bytes) { return EnvelopeDecoder().decode(bytes); }

Envelope EnvelopeDecoder::decode(ByteSpan bytes) {
  v1::Envelope message;
  columns::parse(bytes, message, kWhat);
  Envelope envelope;
  check(message.has_attempt(), "it names no attempt");
  // An incarnation has 32 digits. This limit only bounds the copy.
  check(message.attempt().incarnation().size() <= 64, "an incarnation is too long");
  envelope.attempt.incarnation = message.attempt().incarnation();
  envelope.attempt.checkpointer = checked_name(message.attempt().checkpointer());
  envelope.attempt.counter = message.attempt().counter();
  envelope.sender = rank_of(message.sender());
  envelope.id = message.id();
  envelope.cause = message.cause();
  envelope.body = body_of(message, *seen_);
  auto* const ending = ending_in(envelope.body);
  check(message.has_ending() == (ending != nullptr), "an ending is missing, or is in a message that must not have one");
  if (ending != nullptr) *ending = from_proto(message.ending());
  return envelope;
}

}  // namespace cairn::protocol
