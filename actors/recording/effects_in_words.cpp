// Describes the decisions of state machines as text, for people to compare.
#include <cstring>

#include <cairn/actors/recording/event_codec.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/messages/codec.hpp>

namespace cairn::recording {
namespace {

// Long enough to tell two digests apart, short enough to read.
std::string short_digest(const std::string& bytes) { return to_hex(sha256(bytes)).substr(0, 16); }

std::string digest_of_body(const protocol::Message& body, const PlanDigests& digests) {
  protocol::Envelope envelope;
  envelope.body = without_user_data(body);
  digests.to_recorded(envelope.body);
  return short_digest(protocol::encode(envelope));
}

std::string failures_in_words(const std::vector<protocol::FailureGroup>& failures) {
  if (failures.empty()) return "no failures";
  std::string text;
  for (const auto& group : failures) {
    std::vector<int> ranks;
    for (const auto& member : group.members) ranks.push_back(member.rank);
    text += (text.empty() ? "" : ", ") + name_ranks(ranks) + " " + to_string(group.cause.kind) + " in " +
            to_string(group.cause.phase);
  }
  return text;
}

// Returns the parts of a message that people want to see, to be put before the digest.
std::string gist(const protocol::Message& body) {
  if (const auto* outcome = std::get_if<protocol::Outcome>(&body))
    return "committed " + std::string(to_string(outcome->ending->committed)) + ", " +
           failures_in_words(outcome->ending->failures) + ", ";
  if (const auto* failed = std::get_if<protocol::PhaseFailed>(&body))
    return std::string(to_string(failed->failure.kind)) + " in " + to_string(failed->failure.phase) + ", ";
  if (const auto* begin = std::get_if<protocol::Begin>(&body)) return "call " + std::to_string(begin->ticket) + ", ";
  if (const auto* join = std::get_if<protocol::Join>(&body)) return "call " + std::to_string(join->ticket) + ", ";
  if (const auto* other = std::get_if<protocol::FollowOther>(&body)) return "leader " + std::to_string(other->leader) + ", ";
  return "";
}

std::string digest_of_argument(const protocol::HookValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "nothing";
  v1::MachineEvent message;
  to_proto(protocol::HookDone{0, value}, message);
  // The digest covers user data that was left out. A replayed plan has neither that data nor the
  // digest, so the digest must not count.
  for (auto& plan : *message.mutable_hook_done()->mutable_values())
    if (plan.has_local_save_plan()) plan.mutable_local_save_plan()->clear_digest();
  return short_digest(message.SerializeAsString());
}

struct InWords {
  const PlanDigests& digests;

  std::string operator()(const protocol::Send& send) const {
    return "send " + std::string(protocol::name_of(send.body)) + " to rank " + std::to_string(send.to) + " in attempt " +
           std::to_string(send.counter) + " (" + gist(send.body) + digest_of_body(send.body, digests) + ")";
  }
  std::string operator()(const protocol::RunHook& hook) const {
    return "run " + std::string(protocol::name_of(hook.hook, hook.operation)) + " in " + to_string(hook.phase) + ", number " +
           std::to_string(hook.sequence) + " of attempt " + std::to_string(hook.counter) +
           (hook.is_coordinator ? ", coordinates" : "") + (hook.save_id.empty() ? "" : ", of " + hook.save_id) + " (" +
           digest_of_argument(hook.argument) + ")";
  }
  std::string operator()(const protocol::StartTimer& start) const {
    return "start timer " + std::to_string(static_cast<int>(start.timer)) + ", " + std::to_string(start.after.count()) + " ns";
  }
  std::string operator()(const protocol::StopTimer& stop) const {
    return "stop timer " + std::to_string(static_cast<int>(stop.timer));
  }
  std::string operator()(const protocol::Finished& finished) const {
    const protocol::Outcome outcome{1, protocol::make_ending(finished.failures, finished.committed, finished.save_id, finished.answer)};
    return "finish the call (" + gist(outcome) + digest_of_body(outcome, digests) + ")";
  }
  std::string operator()(const protocol::ProgressTold& told) const {
    return "show the progress " + digest_of_body(told.job, digests);
  }
  std::string operator()(const protocol::Warn& warning) const { return "warn: " + warning.what; }
  std::string operator()(const protocol::Note& note) const { return std::string(note.ok ? "become " : "ignore ") + note.what; }
};

// FNV-1a.
class Hash {
 public:
  Hash& add(std::uint64_t value) noexcept {
    for (int i = 0; i < 8; ++i, value >>= 8) hash_ = (hash_ ^ (value & 0xff)) * 0x100000001b3;
    return *this;
  }
  Hash& add(int value) noexcept { return add(static_cast<std::uint64_t>(static_cast<std::int64_t>(value))); }
  std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

struct AddEvent {
  Hash& hash;
  void operator()(const protocol::CallStarted& call) const noexcept { hash.add(call.ticket).add(call.coordinator_rank); }
  void operator()(const protocol::CancelRequested& request) const noexcept { hash.add(request.ticket); }
  void operator()(const protocol::Received& received) const noexcept {
    hash.add(received.from).add(received.counter).add(std::uint64_t{received.body.index()});
  }
  void operator()(const protocol::HookDone& done) const noexcept {
    hash.add(done.sequence).add(std::uint64_t{done.result.index()});
  }
  void operator()(const protocol::TimerFired& fired) const noexcept { hash.add(static_cast<int>(fired.timer)); }
  void operator()(const protocol::PeerDown& down) const noexcept { hash.add(down.rank).add(static_cast<int>(down.kind)); }
  void operator()(const protocol::PeerUp& up) const noexcept { hash.add(up.rank); }
  void operator()(const protocol::ProgressDue&) const noexcept {}
  void operator()(const protocol::ActorDied&) const noexcept {}
  void operator()(const protocol::Cancelled&) const noexcept {}
};

struct AddEffect {
  Hash& hash;
  void operator()(const protocol::Send& send) const noexcept {
    hash.add(send.to).add(send.counter).add(std::uint64_t{send.body.index()});
  }
  void operator()(const protocol::RunHook& hook) const noexcept { hash.add(static_cast<int>(hook.hook)).add(hook.sequence); }
  void operator()(const protocol::StartTimer& start) const noexcept {
    hash.add(static_cast<int>(start.timer)).add(static_cast<std::uint64_t>(start.after.count()));
  }
  void operator()(const protocol::StopTimer& stop) const noexcept { hash.add(static_cast<int>(stop.timer)); }
  void operator()(const protocol::Finished& finished) const noexcept {
    hash.add(static_cast<int>(finished.committed));
    for (const auto& [rank, failure] : finished.failures) hash.add(rank).add(static_cast<int>(failure.kind));
  }
  void operator()(const protocol::ProgressTold&) const noexcept {}
  void operator()(const protocol::Warn& warning) const noexcept { hash.add(std::uint64_t{warning.what.size()}); }
  void operator()(const protocol::Note& note) const noexcept { hash.add(std::uint64_t{std::strlen(note.what)}); }
};

}  // namespace

std::vector<std::string> in_words(const protocol::Effects& effects, const PlanDigests& digests) {
  std::vector<std::string> words;
  for (const auto& effect : effects) {
    try {
      words.push_back(std::visit(InWords{digests}, effect));
    } catch (const Error& error) {  // exceeds a limit of the codec
      words.push_back(std::string("something that cannot be told: ") + error.what());
    }
  }
  return words;
}

std::uint64_t digest_of(const protocol::Event& event, const protocol::Effects& effects) noexcept {
  Hash hash;
  hash.add(std::uint64_t{event.index()});
  std::visit(AddEvent{hash}, event);
  for (const auto& effect : effects) {
    hash.add(std::uint64_t{effect.index()});
    std::visit(AddEffect{hash}, effect);
  }
  return hash.value();
}

}  // namespace cairn::recording
