#include <cairn/actors/planner_actor.hpp>

#include <utility>

#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/exit_reason.hpp>
#include <cairn/actors/hook_ticket.hpp>
#include <cairn/base/error.hpp>
#include <cairn/messages/codec.hpp>

namespace cairn {
namespace {

using protocol::Hook;
using protocol::HookValue;

HookValue run_save_planner(protocol::RunHook& hook, CallContext& context) {
  const SaveCall& call = context.save();
  switch (hook.hook) {
    case Hook::kSetUpPlanner:
      call.planner->set_up_planner(*call.state_dict, context.rank(), hook.is_coordinator);
      return {};
    case Hook::kCreateLocalPlan:
      return std::make_shared<SavePlan>(call.planner->create_local_plan());
    case Hook::kCreateGlobalPlan:
      return std::make_shared<GlobalSavePlan>(call.planner->create_global_plan(take<std::vector<SavePlan>>(hook.argument)));
    case Hook::kFinishPlan:
      return std::make_shared<SavePlan>(call.planner->finish_plan(take<SavePlan>(hook.argument)));
    default:
      throw InternalError("the planner actor was asked for a hook that is not the planner's");
  }
}

HookValue run_load_planner(protocol::RunHook& hook, CallContext& context) {
  const LoadCall& call = context.load();
  switch (hook.hook) {
    case Hook::kSetUpPlanner:
      call.planner->set_up_planner(*call.state_dict, *context.metadata, context.rank(), hook.is_coordinator);
      return {};
    case Hook::kCreateLocalPlan:
      return std::make_shared<LoadPlan>(call.planner->create_local_plan());
    case Hook::kCreateGlobalPlan:
      return std::make_shared<std::vector<LoadPlan>>(call.planner->create_global_plan(take<std::vector<LoadPlan>>(hook.argument)));
    case Hook::kFinishPlan:
      return std::make_shared<LoadPlan>(call.planner->finish_plan(take<LoadPlan>(hook.argument)));
    default:
      throw InternalError("the planner actor was asked for a hook that is not the planner's");
  }
}

HookValue decide(const protocol::RunHook& hook, const CallContext& context) {
  const auto& texts = std::get<protocol::AgreementTexts>(hook.argument).texts;
  // The texts of other ranks were checked when they were encoded.
  const std::size_t own_bytes = texts[static_cast<std::size_t>(context.rank())].size();
  if (own_bytes > protocol::kAgreementTextMax)
    throw Error(ErrorCode::kInvalidArgument, "this rank's text for an agreement has " + std::to_string(own_bytes) +
                                                 " bytes; the limit is " + std::to_string(protocol::kAgreementTextMax));
  std::string answer = context.agreement().decide(texts);
  if (answer.size() > protocol::kAgreementAnswerMax)
    throw Error(ErrorCode::kInvalidArgument, "the answer of an agreement has " + std::to_string(answer.size()) +
                                                 " bytes; the limit is " + std::to_string(protocol::kAgreementAnswerMax));
  return protocol::AgreementTexts{{std::move(answer)}};
}

HookValue run(protocol::RunHook& hook, CallContext& context) {
  if (hook.hook == Hook::kDecide) return decide(hook, context);
  if (hook.hook == Hook::kBegin) {
    if (context.call().begin) context.call().begin(std::get<std::vector<std::string>>(hook.argument));
    return {};
  }
  return hook.operation == protocol::Operation::kSave ? run_save_planner(hook, context) : run_load_planner(hook, context);
}

}  // namespace

PlannerActor::behavior_type planner_actor(PlannerActor::pointer self, std::shared_ptr<Tracer> tracer) {
  self->set_exception_handler(exit_reason_of);
  auto tap = std::make_shared<Tap>(std::move(tracer), Actor::kPlanner);
  return {[tap](const Traced<HookRequest>& message) {
    tap->handle(message, [&] {
      const HookRequest& request = message.value;
      request.context->call().executor->post([request = HookRequest(request)]() mutable {
        try {
          request.ticket->start();
          request.ticket->succeed(run(request.hook, *request.context));
        } catch (...) {
          request.ticket->fail(std::current_exception());
        }
      });
    });
  }};
}

}  // namespace cairn
