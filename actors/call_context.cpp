#include <cairn/actors/call_context.hpp>

#include <utility>

#include <cairn/actors/local_messages.hpp>
#include <cairn/storage/store_observer.hpp>

namespace cairn {

namespace {

// Records store operations. Runs on the threads of writers and readers.
class StoreTap final : public StoreObserver {
 public:
  StoreTap(std::shared_ptr<Tracer> tracer, Duration duration_min, std::uint32_t checkpointer, std::uint64_t call,
           std::uint64_t attempt)
      : StoreObserver(duration_min), tracer_(std::move(tracer)), checkpointer_(checkpointer), call_(call), attempt_(attempt) {}

  void on_operation(const StoreOperation& operation) noexcept override {
    ObservedEvent event;
    event.kind = EventKind::kStore;
    event.actor = Actor::kStore;
    event.name = operation.name;
    event.checkpointer = checkpointer_;
    event.call = call_;
    event.attempt = attempt_;
    event.bytes = operation.bytes;
    event.duration = operation.duration;
    event.ok = !operation.code;
    event.code = operation.code;
    event.text = operation.url;
    std::string text;
    try {
      if (operation.code) event.text = text = std::string(operation.url) + ": " + std::string(operation.failure);
    } catch (...) {  // out of memory: the hook's event has the exception
    }
    tracer_->record(event);
  }

 private:
  const std::shared_ptr<Tracer> tracer_;
  const std::uint32_t checkpointer_;
  const std::uint64_t call_;
  const std::uint64_t attempt_;
};

}  // namespace

CallContext::CallContext(AnyCall call, std::uint64_t ticket, int rank, int world_size, bool one_process,
                         std::function<void(CallResult)> done)
    : call_(std::move(call)),
      ticket_(ticket),
      rank_(rank),
      world_size_(world_size),
      one_process_(one_process),
      done_(std::move(done)) {
  // Made now: a supervisor that dies for want of memory has none for it.
  outcome_.failures.emplace(
      rank_, protocol::make_failure(rank_, Phase::kJoin, FailureKind::kInternal, ErrorCode::kInternal, "supervisor",
                                    "the supervisor of rank " + std::to_string(rank_) + " ended before this call did"));
  outcome_.committed = operation() == protocol::Operation::kSave ? Committed::kUnknown : Committed::kNo;
}

void CallContext::end(CallResult outcome) {
  if (has_ended_.exchange(true)) return;
  outcome_ = std::move(outcome);
  let_go();
}

void CallContext::give_up(std::optional<Failure> failure) {
  if (has_ended_.exchange(true)) return;
  Failure& lost = outcome_.failures.at(rank_);
  if (failure) lost = std::move(*failure);
  try {
    lost_ = lost;
  } catch (...) {  // out of memory: the other ranks find out by their deadlines
  }
  let_go();
}

void CallContext::let_go() {
  if (--holders_ != 0) return;
  try {
    if (lost_ && lost_report_) lost_report_(*this, *lost_);
  } catch (...) {  // out of memory: the other ranks find out by their deadlines
  }
  try {
    if (done_) done_(std::move(outcome_));
  } catch (...) {  // nobody can handle an exception of the callback
  }
}

const Call& CallContext::call() const {
  return std::visit([](const auto& it) -> const Call& { return it; }, call_);
}

protocol::Operation CallContext::operation_of(const AnyCall& call) {
  if (std::holds_alternative<SaveCall>(call)) return protocol::Operation::kSave;
  return std::holds_alternative<LoadCall>(call) ? protocol::Operation::kLoad : protocol::Operation::kAgree;
}

protocol::CallStarted CallContext::started() const {
  protocol::CallStarted started;
  started.ticket = ticket_;
  started.ordinal = call().id.ordinal;
  started.operation = operation();
  started.checkpoint_id = call().checkpoint_id;
  started.coordinator_rank = call().coordinator_rank;
  started.options_digest = call().options_digest;
  started.stateful_keys = call().stateful_keys;
  started.deadline = call().deadline;
  started.text = started.operation == protocol::Operation::kAgree ? agreement().text : call().options_text;
  return started;
}

StorageContext CallContext::storage_context(std::uint64_t counter, const std::string& save_id, bool is_coordinator) const {
  StorageContext context;
  context.checkpoint_id = call().checkpoint_id;
  if (operation() == protocol::Operation::kSave) context.save_id = save_id;
  context.rank = rank_;
  context.world_size = world_size_;
  context.one_process = one_process_;
  context.is_coordinator = is_coordinator;
  context.step = call().step;
  context.user_metadata = call().user_metadata;
  if (tracer_)
    context.store_observer =
        std::make_shared<StoreTap>(tracer_, store_duration_min_, checkpointer_key(call().id.checkpointer), ticket_, counter);
  return context;
}

void CallContext::trace_stores(std::shared_ptr<Tracer> tracer, Duration duration_min) {
  tracer_ = std::move(tracer);
  store_duration_min_ = duration_min;
}

void CallContext::report_early(CallResult outcome) {
  if (const auto report = std::exchange(early_report_, nullptr)) report(std::move(outcome));
}

bool describe(const StartCall& start, ObservedEvent& event) {
  event.call = start.context->ticket();
  return describe_as("StartCall", start.context->call().id.checkpointer, event);
}

}  // namespace cairn
