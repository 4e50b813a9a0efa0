#include <cairn/actors/storage_actor.hpp>

#include <utility>

#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/exit_reason.hpp>
#include <cairn/actors/hook_ticket.hpp>

namespace cairn {
namespace {

using protocol::Hook;
using protocol::HookValue;

// An empty id is not validated: user-defined writers may need none.
template <class Storage>
void reset(Storage& storage, const std::string& checkpoint_id) {
  if (!checkpoint_id.empty() && !storage.validate_checkpoint_id(checkpoint_id))
    throw Error(
        ErrorCode::kInvalidArgument,
        "\"" + checkpoint_id + "\" is not a checkpoint id that this writer or reader can handle; pass a path or URL of its kind");
  storage.reset(checkpoint_id);
}

// Fulfils the ticket when the data has moved. The plan and the call, with its planner, stay alive
// until then.
template <class Result, class Plan, class Convert>
void report_when_ready(const Future<Result>& future, const HookRequest& request, std::shared_ptr<Plan> plan, Convert convert) {
  if (!future.valid())
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name_of(request.hook.hook, request.hook.operation)) +
                    " returned a future that refers to nothing; return ready_future(...) or that of a promise");
  future.on_ready(
      [context = request.context, ticket = request.ticket, plan = std::move(plan), convert](const Future<Result>& ready) {
        try {
          ticket->succeed(convert(ready.get()));
        } catch (...) {
          ticket->fail(std::current_exception());
        }
      });
}

void move_data(HookRequest& request) {
  CallContext& context = *request.context;
  if (request.hook.operation == protocol::Operation::kSave) {
    auto plan = std::get<std::shared_ptr<SavePlan>>(request.hook.argument);
    auto future = context.save().writer->write_data(*plan, *context.save().planner);
    report_when_ready(future, request, std::move(plan),
                      [](WriteResults results) -> HookValue { return std::make_shared<WriteResults>(std::move(results)); });
  } else {
    auto plan = std::get<std::shared_ptr<LoadPlan>>(request.hook.argument);
    auto future = context.load().reader->read_data(*plan, *context.load().planner);
    report_when_ready(future, request, std::move(plan), [](bool) -> HookValue { return {}; });
  }
}

// Without an outcome, does nothing: other ranks may still publish the files of this rank.
void discard_if_told(StorageWriter& writer, const protocol::RunHook& hook) noexcept {
  const auto* const committed = std::get_if<Committed>(&hook.argument);
  if (committed && (*committed == Committed::kNo || hook.is_coordinator)) writer.discard(hook.is_coordinator);
}

HookValue run_writer(protocol::RunHook& hook, CallContext& context) {
  StorageWriter& writer = *context.save().writer;
  switch (hook.hook) {
    case Hook::kReset:
      reset(writer, context.call().checkpoint_id);
      return {};
    case Hook::kSetUpStorage:
      writer.set_up_storage_writer(context.storage_context(hook));
      return {};
    case Hook::kPrepareLocalPlan:
      return std::make_shared<SavePlan>(writer.prepare_local_plan(take<SavePlan>(hook.argument)));
    case Hook::kPrepareGlobalPlan:
      return std::make_shared<std::vector<SavePlan>>(writer.prepare_global_plan(take<std::vector<SavePlan>>(hook.argument)));
    case Hook::kFinish: {
      auto& arguments = std::get<protocol::FinishArguments>(hook.argument);
      writer.finish(std::move(*arguments.metadata), std::move(*arguments.results));
      return {};
    }
    case Hook::kAskCommitted:
      return writer.committed(hook.save_id);
    case Hook::kAbandon:
      writer.abandon();
      discard_if_told(writer, hook);
      return {};
    case Hook::kRelease:
      discard_if_told(writer, hook);
      return {};
    default:
      throw InternalError("the storage actor was asked for a hook that is not the writer's");
  }
}

HookValue run_reader(protocol::RunHook& hook, CallContext& context) {
  StorageReader& reader = *context.load().reader;
  switch (hook.hook) {
    case Hook::kReset:
      reset(reader, context.call().checkpoint_id);
      return {};
    case Hook::kReadMetadata:
      context.metadata = reader.read_metadata();
      return context.metadata->save_id;
    case Hook::kSetUpStorage:
      reader.set_up_storage_reader(*context.metadata, context.storage_context(hook));
      return {};
    case Hook::kPrepareLocalPlan:
      return std::make_shared<LoadPlan>(reader.prepare_local_plan(take<LoadPlan>(hook.argument)));
    case Hook::kPrepareGlobalPlan:
      return std::make_shared<std::vector<LoadPlan>>(reader.prepare_global_plan(take<std::vector<LoadPlan>>(hook.argument)));
    case Hook::kRelease:
      return {};
    default:
      throw InternalError("the storage actor was asked for a hook that is not the reader's");
  }
}

void run(HookRequest& request) {
  try {
    const auto& progress = request.context->call().progress;
    if (request.hook.hook == Hook::kMoveData && progress) request.ticket->set_bytes(progress->seen().own.bytes);
    request.ticket->start();
    if (request.hook.hook == Hook::kMoveData) return move_data(request);
    auto value = request.hook.operation == protocol::Operation::kSave ? run_writer(request.hook, *request.context)
                                                                      : run_reader(request.hook, *request.context);
    request.ticket->succeed(std::move(value));
  } catch (...) {
    request.ticket->fail(std::current_exception());
  }
}

}  // namespace

StorageActor::behavior_type storage_actor(StorageActor::pointer self, std::shared_ptr<Tracer> tracer) {
  self->set_exception_handler(exit_reason_of);
  auto tap = std::make_shared<Tap>(std::move(tracer), Actor::kStorage);
  return {[tap](const Traced<HookRequest>& message) {
    tap->handle(message, [&] {
      const HookRequest& request = message.value;
      request.context->call().executor->post([request = HookRequest(request)]() mutable { run(request); });
    });
  }};
}

}  // namespace cairn
