#include <cairn/actors/recording/event_codec.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include <cairn/actors/local_messages.hpp>
#include <cairn/base/error.hpp>
#include <cairn/messages/codec.hpp>

namespace cairn::recording {
namespace {

using protocol::HookValue;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kCorrupt, "a recorded event of a state machine cannot be read: " + why);
}

// --- messages, in their wire form ----------------------------------------------------------------

void put(v1::Envelope& message, int sender, std::uint64_t counter, const protocol::Message& body) {
  protocol::Envelope envelope;
  envelope.sender = sender;
  envelope.attempt.counter = counter;
  envelope.body = without_user_data(body);
  if (!message.ParseFromString(protocol::encode(envelope))) refuse("a message does not come back as it was");
}

protocol::Envelope take(const v1::Envelope& message) { return protocol::decode(message.SerializeAsString()); }

template <class T>
T take_body(const v1::Envelope& message) {
  auto body = take(message).body;
  auto* const wanted = std::get_if<T>(&body);
  if (wanted == nullptr) refuse("a hook's value is not of the kind that it says");
  return std::move(*wanted);
}

// --- results of hooks ----------------------------------------------------------------------------

void put_plan(v1::HookDone& message, const SavePlan& plan) {
  protocol::LocalSavePlan body;
  auto copy = std::make_shared<SavePlan>(plan);
  if (leave_out_user_data(*copy)) body.digest = plan_digest(plan);
  body.plan = std::move(copy);
  put(*message.add_values(), 0, 0, body);
}

void put_plan(v1::HookDone& message, const LoadPlan& plan) {
  put(*message.add_values(), 0, 0, protocol::LocalLoadPlan{std::make_shared<const LoadPlan>(plan), ""});
}

struct PutValue {
  v1::HookDone& message;
  void operator()(const std::monostate&) const { message.set_kind(v1::HOOK_VALUE_KIND_NOTHING); }
  void operator()(const std::vector<std::string>& names) const {
    message.set_kind(v1::HOOK_VALUE_KIND_NAMES);
    for (const auto& name : names) message.add_texts(name);
  }
  void operator()(const std::string& text) const {
    message.set_kind(v1::HOOK_VALUE_KIND_TEXT);
    message.add_texts(text);
  }
  void operator()(const std::shared_ptr<SavePlan>& plan) const {
    message.set_kind(v1::HOOK_VALUE_KIND_SAVE_PLAN);
    put_plan(message, *plan);
  }
  void operator()(const std::shared_ptr<LoadPlan>& plan) const {
    message.set_kind(v1::HOOK_VALUE_KIND_LOAD_PLAN);
    put_plan(message, *plan);
  }
  void operator()(const std::shared_ptr<std::vector<SavePlan>>& plans) const {
    message.set_kind(v1::HOOK_VALUE_KIND_SAVE_PLANS);
    for (const auto& plan : *plans) put_plan(message, plan);
  }
  void operator()(const std::shared_ptr<std::vector<LoadPlan>>& plans) const {
    message.set_kind(v1::HOOK_VALUE_KIND_LOAD_PLANS);
    for (const auto& plan : *plans) put_plan(message, plan);
  }
  void operator()(const std::shared_ptr<cairn::GlobalSavePlan>& plan) const {
    message.set_kind(v1::HOOK_VALUE_KIND_GLOBAL_SAVE_PLAN);
    for (const auto& of_rank : plan->plans) put_plan(message, of_rank);
  }
  void operator()(const std::shared_ptr<WriteResults>& results) const {
    message.set_kind(v1::HOOK_VALUE_KIND_WRITE_RESULTS);
    put(*message.add_values(), 0, 0, protocol::Written{results});
  }
  // Machines only pass these to hooks. Records the write results of all ranks.
  void operator()(const protocol::FinishArguments& arguments) const {
    message.set_kind(v1::HOOK_VALUE_KIND_WRITE_RESULTS);
    for (const auto& results : *arguments.results)
      put(*message.add_values(), 0, 0, protocol::Written{std::make_shared<const WriteResults>(results)});
  }
  void operator()(Committed committed) const {
    message.set_kind(v1::HOOK_VALUE_KIND_COMMITTED);
    message.set_committed(static_cast<v1::Committed>(committed));
  }
  void operator()(const protocol::AgreementTexts& agreement) const {
    message.set_kind(v1::HOOK_VALUE_KIND_AGREEMENT);
    for (std::string text : agreement.texts) {
      leave_out_user_data(text);
      message.add_texts(std::move(text));
    }
  }
  void operator()(const Failure& failure) const {
    message.set_kind(v1::HOOK_VALUE_KIND_FAILURE);
    put(*message.add_values(), 0, 0, protocol::PhaseFailed{failure});
  }
  void operator()(const HookValue& value) const { std::visit(*this, value); }
};

SavePlan take_save_plan(const v1::Envelope& message, PlanDigests& digests) {
  const auto body = take_body<protocol::LocalSavePlan>(message);
  if (body.digest != Digest{}) digests.add(body.digest, plan_digest(*body.plan));
  return *body.plan;
}

std::vector<SavePlan> take_save_plans(const v1::HookDone& message, PlanDigests& digests) {
  std::vector<SavePlan> plans;
  for (const auto& value : message.values()) plans.push_back(take_save_plan(value, digests));
  return plans;
}

std::variant<HookValue, Failure> take_value(const v1::HookDone& message, PlanDigests& digests) {
  const auto check_count = [](int count) {
    if (count != 1) refuse("a hook has not given one value");
  };
  switch (message.kind()) {
    case v1::HOOK_VALUE_KIND_NOTHING:
      return HookValue{};
    case v1::HOOK_VALUE_KIND_NAMES:
      return HookValue{std::vector<std::string>(message.texts().begin(), message.texts().end())};
    case v1::HOOK_VALUE_KIND_TEXT:
      check_count(message.texts_size());
      return HookValue{message.texts(0)};
    case v1::HOOK_VALUE_KIND_SAVE_PLAN:
      check_count(message.values_size());
      return HookValue{std::make_shared<SavePlan>(take_save_plan(message.values(0), digests))};
    case v1::HOOK_VALUE_KIND_LOAD_PLAN:
      check_count(message.values_size());
      return HookValue{std::make_shared<LoadPlan>(*take_body<protocol::LocalLoadPlan>(message.values(0)).plan)};
    case v1::HOOK_VALUE_KIND_SAVE_PLANS:
      return HookValue{std::make_shared<std::vector<SavePlan>>(take_save_plans(message, digests))};
    case v1::HOOK_VALUE_KIND_LOAD_PLANS: {
      auto plans = std::make_shared<std::vector<LoadPlan>>();
      for (const auto& value : message.values()) plans->push_back(*take_body<protocol::LocalLoadPlan>(value).plan);
      return HookValue{std::move(plans)};
    }
    case v1::HOOK_VALUE_KIND_GLOBAL_SAVE_PLAN: {
      auto plan = std::make_shared<cairn::GlobalSavePlan>();
      plan->plans = take_save_plans(message, digests);
      return HookValue{std::move(plan)};
    }
    case v1::HOOK_VALUE_KIND_WRITE_RESULTS:
      check_count(message.values_size());
      return HookValue{std::make_shared<WriteResults>(*take_body<protocol::Written>(message.values(0)).results)};
    case v1::HOOK_VALUE_KIND_COMMITTED:
      if (message.committed() < v1::COMMITTED_NO || message.committed() > v1::COMMITTED_UNKNOWN)
        refuse("whether something was committed has an unknown value");
      return HookValue{static_cast<Committed>(message.committed())};
    case v1::HOOK_VALUE_KIND_AGREEMENT:
      check_count(message.texts_size());
      return HookValue{protocol::AgreementTexts{{message.texts(0)}}};
    case v1::HOOK_VALUE_KIND_FAILURE:
      check_count(message.values_size());
      return take_body<protocol::PhaseFailed>(message.values(0)).failure;
    default:
      refuse("a hook has given a value that this version does not know");
  }
}

// --- events --------------------------------------------------------------------------------------

struct PutEvent {
  v1::MachineEvent& message;
  void operator()(const protocol::CallStarted& call) const {
    auto& it = *message.mutable_call_started();
    it.set_ticket(call.ticket);
    it.set_ordinal(call.ordinal);
    it.set_operation(static_cast<v1::Operation>(call.operation));
    it.set_checkpoint_id(call.checkpoint_id);
    it.set_coordinator_rank(call.coordinator_rank);
    it.set_options_digest(call.options_digest.data(), call.options_digest.size());
    for (const auto& key : call.stateful_keys) it.add_stateful_keys(key);
    if (call.deadline) it.set_deadline_ns(call.deadline->count());
    std::string text = call.text;
    leave_out_user_data(text);
    it.set_text(std::move(text));
  }
  void operator()(const protocol::CancelRequested& request) const {
    message.mutable_cancel_requested()->set_ticket(request.ticket);
    message.mutable_cancel_requested()->set_why(request.why);
  }
  void operator()(const protocol::Received& received) const {
    put(*message.mutable_received(), received.from, received.counter, received.body);
  }
  void operator()(const protocol::HookDone& done) const {
    auto& it = *message.mutable_hook_done();
    it.set_sequence(done.sequence);
    std::visit(PutValue{it}, done.result);
  }
  void operator()(const protocol::TimerFired& fired) const { message.set_timer_fired(static_cast<std::uint32_t>(fired.timer)); }
  void operator()(const protocol::ProgressDue& due) const {
    auto& it = *message.mutable_progress_due();
    it.set_items(due.moved.items);
    it.set_items_done(due.moved.items_done);
    it.set_bytes(due.moved.bytes);
    it.set_bytes_done(due.moved.bytes_done);
  }
  void operator()(const protocol::PeerDown& down) const {
    auto& it = *message.mutable_peer_down();
    it.set_rank(down.rank);
    it.set_reachable(down.reachable);
    it.set_unopened(down.unopened);
    it.set_gave_up(down.gave_up);
    it.set_kind(static_cast<v1::FailureKind>(down.kind));
    it.set_code(static_cast<std::uint32_t>(down.code));
    it.set_why(down.why);
  }
  void operator()(const protocol::PeerUp& up) const { message.set_peer_up(up.rank); }
  void operator()(const protocol::ActorDied& died) const {
    message.mutable_actor_died()->set_actor(died.actor);
    message.mutable_actor_died()->set_why(died.why);
  }
  void operator()(const protocol::Cancelled& cancelled) const { message.set_cancelled(cancelled.why); }
};

protocol::CallStarted call_of(const v1::CallStarted& message) {
  protocol::CallStarted call;
  call.ticket = message.ticket();
  call.ordinal = message.ordinal();
  if (message.operation() <= 0 || !v1::Operation_IsValid(message.operation()))
    refuse("the operation of a call is unknown to this version");
  call.operation = static_cast<protocol::Operation>(message.operation());
  call.checkpoint_id = message.checkpoint_id();
  call.coordinator_rank = message.coordinator_rank();
  if (message.options_digest().size() != call.options_digest.size()) refuse("a digest does not have 32 bytes");
  std::copy(message.options_digest().begin(), message.options_digest().end(), reinterpret_cast<char*>(call.options_digest.data()));
  call.stateful_keys = {message.stateful_keys().begin(), message.stateful_keys().end()};
  if (message.has_deadline_ns()) call.deadline = Duration(message.deadline_ns());
  call.text = message.text();
  return call;
}

protocol::PeerDown down_of(const v1::PeerDown& message) {
  protocol::PeerDown down;
  down.rank = message.rank();
  down.reachable = message.reachable();
  down.unopened = message.unopened();
  down.gave_up = message.gave_up();
  const bool known = message.kind() > 0 && v1::FailureKind_IsValid(message.kind()) && message.code() > 0 &&
                     message.code() <= static_cast<std::uint32_t>(ErrorCode::kInternal);
  if (!known) refuse("the kind or code of a failure is not known to this version");
  down.kind = static_cast<FailureKind>(message.kind());
  down.code = static_cast<ErrorCode>(message.code());
  down.why = message.why();
  return down;
}

}  // namespace

const char* name_of(const protocol::Event& event) noexcept {
  struct Name {
    const char* operator()(const protocol::CallStarted&) const { return "CallStarted"; }
    const char* operator()(const protocol::CancelRequested&) const { return "CancelRequested"; }
    const char* operator()(const protocol::Received& received) const { return protocol::name_of(received.body); }
    const char* operator()(const protocol::HookDone&) const { return "HookDone"; }
    const char* operator()(const protocol::TimerFired& fired) const { return trace_name_of(fired.timer); }
    const char* operator()(const protocol::ProgressDue&) const { return "ProgressDue"; }
    const char* operator()(const protocol::PeerDown&) const { return "PeerDown"; }
    const char* operator()(const protocol::PeerUp&) const { return "PeerUp"; }
    const char* operator()(const protocol::ActorDied&) const { return "ActorDied"; }
    const char* operator()(const protocol::Cancelled&) const { return "Cancelled"; }
  };
  return std::visit(Name{}, event);
}

int peer_of(const protocol::Event& event) noexcept {
  if (const auto* received = std::get_if<protocol::Received>(&event)) return received->from;
  if (const auto* down = std::get_if<protocol::PeerDown>(&event)) return down->rank;
  if (const auto* up = std::get_if<protocol::PeerUp>(&event)) return up->rank;
  return -1;
}

bool is_of_progress(const protocol::Event& event) noexcept {
  const auto* received = std::get_if<protocol::Received>(&event);
  return std::holds_alternative<protocol::ProgressDue>(event) || (received != nullptr && protocol::is_of_progress(received->body));
}

void to_proto(const protocol::Event& event, v1::MachineEvent& message) { std::visit(PutEvent{message}, event); }

protocol::Event from_proto(const v1::MachineEvent& message, PlanDigests& digests) {
  switch (message.kind_case()) {
    case v1::MachineEvent::kCallStarted:
      return call_of(message.call_started());
    case v1::MachineEvent::kCancelRequested:
      return protocol::CancelRequested{message.cancel_requested().ticket(), message.cancel_requested().why()};
    case v1::MachineEvent::kReceived: {
      auto envelope = take(message.received());
      digests.to_replayed(envelope.body);
      return protocol::Received{envelope.sender, envelope.attempt.counter, std::move(envelope.body)};
    }
    case v1::MachineEvent::kHookDone:
      return protocol::HookDone{message.hook_done().sequence(), take_value(message.hook_done(), digests)};
    case v1::MachineEvent::kTimerFired:
      if (message.timer_fired() < 1 || message.timer_fired() > static_cast<std::uint32_t>(protocol::Timer::kWaiting))
        refuse("a timer is not known to this version");
      return protocol::TimerFired{static_cast<protocol::Timer>(message.timer_fired())};
    case v1::MachineEvent::kProgressDue: {
      const auto& moved = message.progress_due();
      return protocol::ProgressDue{{moved.items(), moved.items_done(), moved.bytes(), moved.bytes_done()}};
    }
    case v1::MachineEvent::kPeerDown:
      return down_of(message.peer_down());
    case v1::MachineEvent::kPeerUp:
      return protocol::PeerUp{message.peer_up()};
    case v1::MachineEvent::kActorDied:
      return protocol::ActorDied{message.actor_died().actor(), message.actor_died().why()};
    case v1::MachineEvent::kCancelled:
      return protocol::Cancelled{message.cancelled()};
    case v1::MachineEvent::KIND_NOT_SET:
      break;
  }
  refuse("it is of a kind that this version does not know");
}

}  // namespace cairn::recording
