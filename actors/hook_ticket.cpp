#include <cairn/actors/hook_ticket.hpp>

#include <utility>

#include <cairn/actors/call_events.hpp>
#include <cairn/actors/links/links.hpp>

namespace cairn {
HookTicket::HookTicket(std::shared_ptr<Inbox> supervisor, const Tap& asker, int rank, std::string checkpointer,
                       std::uint64_t coordinator, const protocol::RunHook& hook, std::shared_ptr<Injector> injector)
    : supervisor_(std::move(supervisor)),
      tap_(asker.tracer(), protocol::actor_of(hook.hook)),
      rank_(rank),
      checkpointer_(std::move(checkpointer)),
      coordinator_(coordinator),
      hook_(hook.hook),
      operation_(hook.operation),
      phase_(hook.phase),
      sequence_(hook.sequence),
      counter_(hook.counter),
      injector_(std::move(injector)),
      started_(tap_.tracer()->now()) {
  tap_.set_cause(asker.cause());
  tap_.set_call(asker.call());
}

HookTicket::~HookTicket() {
  if (reported_) return;
  const char* const actor = to_string(protocol::actor_of(hook_));
  Failure failure =
      protocol::make_failure(rank_, phase_, FailureKind::kInternal, ErrorCode::kInternal, actor,
                             std::string(protocol::name_of(hook_, operation_)) + " never ran: the " + actor + " actor of rank " +
                                 std::to_string(rank_) + " or the executor of the call dropped it");
  failure.trace_position = record(false, failure.what);
  report(std::move(failure));
}

void HookTicket::start() {
  started_ = tap_.tracer()->now();
  if (hook_ != protocol::Hook::kRelease) tap_.set_cause(tap_.record(event_of(EventKind::kBegan)));
  if (!injector_ || hook_ == protocol::Hook::kRelease) return;
  const bool after_the_phases = hook_ == protocol::Hook::kAskCommitted || hook_ == protocol::Hook::kAbandon;
  const char* const phase = after_the_phases ? "" : to_string(phase_);
  for (const auto& rule : injector_->pass_hook(protocol::name_of(hook_, operation_), phase, checkpointer_, counter_, rank_))
    if (rule.action == FaultAction::kDropLink) supervisor_->post(LinkDrop{rule.peer.value_or(-1)});
}

void HookTicket::succeed(protocol::HookValue value) {
  if (reported_) return;
  record(true);
  report(std::move(value));
}

void HookTicket::fail(std::exception_ptr exception) {
  if (reported_) return;
  Failure failure = capture_failure(rank_, phase_, to_string(protocol::actor_of(hook_)), std::move(exception));
  failure.trace_position = record(false, failure.what);
  report(std::move(failure));
}

ObservedEvent HookTicket::event_of(EventKind kind) const {
  ObservedEvent event = call_event(kind, {}, checkpointer_, counter_);
  event.name = protocol::name_of(hook_, operation_);
  event.phase = phase_;
  event.bytes = bytes_;
  return event;
}

std::uint64_t HookTicket::record(bool ok, std::string_view failure) {
  ObservedEvent event = event_of(EventKind::kOperation);
  event.duration = tap_.tracer()->now() - started_;
  event.text = failure;
  event.ok = ok;
  const std::uint64_t id = tap_.record(event);
  tap_.set_cause(id);  // for the report that follows
  return id;
}

void HookTicket::report(std::variant<protocol::HookValue, Failure> result) {
  reported_ = true;
  supervisor_->post(tap_.wrap(HookReport{checkpointer_, coordinator_, counter_, {sequence_, std::move(result)}}));
}

}  // namespace cairn
