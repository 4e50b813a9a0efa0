#include <cairn/actors/rank_runtime.hpp>

#include <filesystem>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include <caf/abstract_actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/send.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/call_events.hpp>
#include <cairn/actors/failure_report.hpp>
#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/links/handshake.hpp>
#include <cairn/actors/rank_supervisor.hpp>
#include <cairn/actors/restart_budget.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/tracing/trace_writer.hpp>

namespace cairn {
namespace {

void check_config(const RankConfig& config, const LinksFactory* links) {
  const std::string rank = "rank " + std::to_string(config.rank);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "cannot start the runtime of " + rank + ": " + what);
  };
  if (config.world_size < 1) refuse("a world of " + std::to_string(config.world_size) + " ranks");
  if (config.rank < 0 || config.rank >= config.world_size)
    refuse("it is not within a world of " + std::to_string(config.world_size) + " ranks");
  if (!is_incarnation(config.incarnation))
    refuse("the incarnation \"" + config.incarnation + "\" does not have 32 lower-case hexadecimal digits");
  if (config.world_size > 1 && links == nullptr) refuse("a world of several ranks needs links");
  // Only actors use these options, and an actor would report a bad value late and as an unrelated
  // failure.
  const RuntimeOptions& options = config.options;
  if (options.frame_bytes_max < kFrameBytesMin || options.frame_bytes_max > kFrameBytesLimit)
    refuse("frame_bytes_max " + std::to_string(options.frame_bytes_max) + " is not between " + std::to_string(kFrameBytesMin) +
           " bytes and 1 GiB");
  if (options.message_bytes_max < options.frame_bytes_max)
    refuse("message_bytes_max " + std::to_string(options.message_bytes_max) + " is less than frame_bytes_max " +
           std::to_string(options.frame_bytes_max));
  if (options.heartbeat_timeout.count() <= 0) refuse("heartbeat_timeout must be more than 0 ms");
}

// Limits durations that the actors add to clock times and to each other, so that the sums do not
// overflow.
RankConfig with_bounded_waits(RankConfig config) {
  RuntimeOptions& options = config.options;
  for (auto* const wait :
       {&options.join_deadline, &options.phase_deadline, &options.outcome_grace, &options.phase_grace, &options.cancel_grace,
        &options.connect_deadline, &options.handshake_deadline, &options.heartbeat_timeout, &options.progress_interval})
    *wait = bounded_wait(*wait);
  return config;
}

void check_call(const Call& call, int world_size, bool has_hooks = true) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "cannot save or load \"" + call.checkpoint_id + "\": " + what);
  };
  if (call.executor == nullptr) refuse("the call has no executor for its hooks");
  if (!has_hooks) refuse("the call has no hooks");
  // In a larger world the other ranks must learn of the bad rank too: see
  // protocol/call_register.hpp.
  if (world_size == 1 && call.coordinator_rank != 0)
    refuse("the coordinator, rank " + std::to_string(call.coordinator_rank) + ", is not within a world of " +
           std::to_string(world_size) + " ranks");
}

// A trace that cannot be written does not end the training.
std::shared_ptr<Observer> observer_of(const RankConfig& config) {
  if (config.trace_directory.empty()) return config.observer;
  try {
    TraceHeader header = trace_header(config.incarnation, config.rank, config.world_size, TraceSource::kStream);
    return std::make_shared<TraceStream>(config.trace_directory, std::move(header), TraceStream::kBytesMax, config.observer);
  } catch (const std::exception& error) {
    write_log(LogLevel::kWarning, config.rank, std::string("there will be no trace of this rank: ") + error.what());
    return config.observer;
  }
}

// Keeps the running calls of a rank, starts its supervisor, and starts another one when it dies.
// Calls and supervisors, which may outlive the runtime, share it.
class Keeper : public std::enable_shared_from_this<Keeper> {
 public:
  Keeper(caf::actor_system& system, RankConfig config, std::shared_ptr<LinksFactory> links, std::shared_ptr<Tracer> tracer)
      : system_(system), config_(std::move(config)), tracer_(std::move(tracer)), links_(std::move(links)) {}

  Orders& orders() { return *orders_; }

  // Returns the call that `make` makes of its ticket. Throws if no call of the checkpointer may
  // start now.
  std::shared_ptr<CallContext> admit(const std::string& checkpointer, const std::string& checkpoint_id,
                                     const std::function<std::shared_ptr<CallContext>(std::uint64_t ticket)>& make) {
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kPrecondition, "cannot save or load \"" + checkpoint_id + "\": " + why);
    };
    const MutexLock lock(mutex_);
    if (stopped_) refuse("the runtime of rank " + std::to_string(config_.rank) + " was shut down");
    if (calls_.count(checkpointer) != 0)
      refuse("checkpointer \"" + checkpointer + "\" has a save or load running; wait for it, or use another checkpointer");
    auto context = make(++last_ticket_);
    calls_.emplace(checkpointer, context);
    return context;
  }
  // A call has ended: the checkpointer is free for the next one.
  void leave(const std::string& checkpointer, bool ok) {
    const MutexLock lock(mutex_);
    if (ok) budget_.refill();
    calls_.erase(checkpointer);
  }
  // Releases no call under the lock: its objects are user code.
  std::vector<std::shared_ptr<CallContext>> running() {
    std::vector<std::shared_ptr<CallContext>> calls;
    const MutexLock lock(mutex_);
    for (const auto& [checkpointer, call] : calls_)
      if (auto context = call.lock()) calls.push_back(std::move(context));
    return calls;
  }

  // Null if it died too often, or was told to stop.
  SupervisorActor supervisor() {
    const MutexLock lock(mutex_);
    return supervisor_;
  }

  // Lets the supervisor take its orders. If there is none, ends the calls among them.
  void look() {
    if (may_start()) start();
    SupervisorActor receiver;
    {
      const MutexLock lock(mutex_);
      if (starting_) return;  // another thread starts one, and looks then
      receiver = supervisor_;
    }
    if (receiver) return caf::anon_send(receiver, TakeOrders{});
    for (const auto& call : orders_->take_calls()) call.value.context->give_up();
  }

  // No supervisor is started any more, and no call. Returns the last supervisor.
  SupervisorActor stop() {
    const MutexLock lock(mutex_);
    stopped_ = true;
    return supervisor_;
  }
  void release() {
    SupervisorActor stopped;  // released without the lock, as it may end a call
    std::shared_ptr<LinksFactory> links;
    const MutexLock lock(mutex_);
    std::swap(stopped, supervisor_);
    std::swap(links, links_);
  }

 private:
  bool may_start() {
    const MutexLock lock(mutex_);
    if (stopped_ || supervisor_ || starting_) return false;
    return starting_ = lives_ == 0 || budget_.take(config_.clock->now(), config_.options.child_restarts_max);
  }

  void start() {
    std::shared_ptr<LinksFactory> links;
    std::uint64_t life = 0;
    {
      const MutexLock lock(mutex_);
      links = links_;
      life = ++lives_;
    }
    SupervisorActor started;
    try {
      started = spawn_supervisor(system_, config_, links, tracer_, orders_);
    } catch (...) {  // out of memory or threads: the next call tries again
      const MutexLock lock(mutex_);
      starting_ = false;
      return;
    }
    {
      const MutexLock lock(mutex_);
      starting_ = false;
      if (!stopped_) supervisor_ = started;
    }
    if (!supervisor()) caf::anon_send(started, StopNow{});
    caf::actor_cast<caf::abstract_actor*>(started)->attach_functor([weak = weak_from_this(), life](const caf::error& reason) {
      if (const auto keeper = weak.lock()) keeper->on_end(life, reason);
    });
  }

  void on_end(std::uint64_t life, const caf::error& reason) {
    SupervisorActor ended;
    bool died = false;
    {
      const MutexLock lock(mutex_);
      if (life != lives_) return;
      std::swap(ended, supervisor_);
      if (!reason) stopped_ = true;  // it was told to stop
      died = !stopped_;
    }
    if (died) write_log(LogLevel::kWarning, config_.rank, "the supervisor actor died: " + describe_exit(reason));
    look();
  }

  caf::actor_system& system_;
  const RankConfig config_;
  const std::shared_ptr<Tracer> tracer_;
  const std::shared_ptr<Orders> orders_ = std::make_shared<Orders>();
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<CallContext>> calls_ CAIRN_GUARDED_BY(mutex_);  // running, by checkpointer
  std::uint64_t last_ticket_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;                 // no call is accepted, and no supervisor started
  std::shared_ptr<LinksFactory> links_ CAIRN_GUARDED_BY(mutex_);  // keeps the descriptor that listens
  SupervisorActor supervisor_ CAIRN_GUARDED_BY(mutex_);
  bool starting_ CAIRN_GUARDED_BY(mutex_) = false;
  std::uint64_t lives_ CAIRN_GUARDED_BY(mutex_) = 0;
  RestartBudget budget_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

struct RankRuntime::Implementation {
  std::shared_ptr<ActorSystem> system;
  RankConfig config;
  std::shared_ptr<Tracer> tracer;
  Tap tap;
  std::shared_ptr<Keeper> keeper;
  Mutex stopping;  // held by one shutdown at a time

  Implementation(std::shared_ptr<ActorSystem> actor_system, RankConfig rank_config, std::shared_ptr<LinksFactory> links)
      : system(std::move(actor_system)),
        config(with_bounded_waits(std::move(rank_config))),
        tracer(std::make_shared<Tracer>(config.rank, config.options.trace_ring_bytes, observer_of(config), *config.clock)),
        tap(tracer, Actor::kRuntime),
        keeper(std::make_shared<Keeper>(system->caf_system(), config, std::move(links), tracer)) {
    keeper->look();
  }

  std::uint64_t start(CallContext::AnyCall call, std::function<void(CallResult)> done) {
    auto context = admit(std::move(call), std::move(done));
    const std::uint64_t ticket = context->ticket();
    if (context->operation() == protocol::Operation::kAgree)
      tracer->keep_out_of_ring(checkpointer_key(context->call().id.checkpointer));
    const std::uint64_t cause = record_call(*context);
    keeper->orders().start(tap.wrap(StartCall{std::move(context)}, cause));
    keeper->look();
    return ticket;
  }

  std::uint64_t record_call(const CallContext& context) {
    const Call& call = context.call();
    ObservedEvent event = call_event(EventKind::kCall, context.operation(), call.id.checkpointer, 0);
    event.text = call.checkpoint_id;
    event.number = call.id.ordinal;
    event.call = context.ticket();
    return tap.record(event);
  }

  std::shared_ptr<CallContext> admit(CallContext::AnyCall call, std::function<void(CallResult)> done) {
    const Call& common = std::visit([](const auto& it) -> const Call& { return it; }, call);
    const std::string checkpointer = common.id.checkpointer;
    const auto ending = std::make_shared<ReportedCall>();
    ending->directory = common.report_directory;
    ending->checkpoint_id = common.checkpoint_id;
    ending->operation = to_string(CallContext::operation_of(call));
    ending->id = common.id;
    ending->incarnation = config.incarnation;
    ending->rank = config.rank;
    ending->world_size = config.world_size;
    ending->tracer = tracer;
    // The checkpointer is free again before `done` runs, so that `done` may start the next call.
    ending->done = [keeper = keeper, checkpointer, done = std::move(done)](CallResult outcome) {
      keeper->leave(checkpointer, outcome.ok());
      if (done) done(std::move(outcome));
    };
    return keeper->admit(checkpointer, ending->checkpoint_id, [&](std::uint64_t ticket) {
      auto context = std::make_shared<CallContext>(std::move(call), ticket, config.rank, config.world_size, config.one_process,
                                                   [ending](CallResult outcome) { end_call(ending, std::move(outcome)); });
      context->set_early_report([ending](CallResult outcome) { report_running_call(ending, std::move(outcome)); });
      context->set_lost_report([keeper = keeper](const CallContext& lost, const Failure& failure) {
        const auto alone = protocol::make_ending({{failure.rank, failure}}, Committed::kUnknown, "");
        keeper->orders().end(lost.call().id.checkpointer, {0, lost.started(), alone}, true);
        keeper->look();
      });
      context->trace_stores(tracer, config.options.trace_store_operations);
      return context;
    });
  }
};

RankRuntime::RankRuntime(std::shared_ptr<ActorSystem> system, RankConfig config, std::shared_ptr<LinksFactory> links) {
  if (system == nullptr) throw Error(ErrorCode::kInvalidArgument, "a RankRuntime needs an ActorSystem");
  check_config(config, links.get());
  implementation_ = std::make_unique<Implementation>(std::move(system), std::move(config), std::move(links));
}

RankRuntime::~RankRuntime() {
  try {
    shutdown(std::chrono::milliseconds(0));
  } catch (...) {  // out of memory or threads: the actors end with their system
  }
}

std::uint64_t RankRuntime::save(SaveCall call, std::function<void(CallResult)> done) {
  check_call(call, implementation_->config.world_size, call.hooks != nullptr);
  return implementation_->start(std::move(call), std::move(done));
}

std::uint64_t RankRuntime::load(LoadCall call, std::function<void(CallResult)> done) {
  check_call(call, implementation_->config.world_size, call.hooks != nullptr);
  return implementation_->start(std::move(call), std::move(done));
}

std::uint64_t RankRuntime::agree(AgreeCall call, std::function<void(CallResult)> done) {
  if (!call.decide)
    throw Error(ErrorCode::kInvalidArgument, "cannot agree on \"" + call.checkpoint_id + "\": no decide function was given");
  check_call(call, implementation_->config.world_size);
  return implementation_->start(std::move(call), std::move(done));
}

void RankRuntime::cancel(const std::string& checkpointer, std::uint64_t ticket, const std::string& why) {
  const auto receiver = implementation_->keeper->supervisor();
  if (receiver) caf::anon_send(receiver, implementation_->tap.wrap(CancelCall{checkpointer, {ticket, why}}));
}

bool RankRuntime::shutdown(std::chrono::milliseconds deadline) {
  auto& self = *implementation_;
  const MutexLock one_at_a_time(self.stopping);
  const SupervisorActor supervisor = self.keeper->stop();
  if (!supervisor) {
    self.keeper->release();
    return true;
  }
  auto sent = std::make_shared<std::promise<void>>();
  const std::future<void> stopped = sent->get_future();
  // A dead supervisor drops the message, and a promise that is destroyed ends the wait too.
  caf::anon_send(supervisor, self.tap.wrap(Stop{std::move(sent)}));
  const bool in_time = stopped.wait_for(bounded_wait(deadline)) == std::future_status::ready;
  if (!in_time) {
    // Not left to the supervisor, which may be late: the caller may destroy what hooks use next.
    for (const auto& call : self.keeper->running()) call->tell_to_stop();
    caf::anon_send(supervisor, StopNow{});
  }
  self.keeper->release();
  return in_time;
}

void RankRuntime::note_operation(const std::string& checkpointer, std::uint64_t ticket, std::string_view name, Duration duration) {
  if (duration < implementation_->config.options.trace_store_operations) return;
  ObservedEvent event = call_event(EventKind::kStore, {}, checkpointer, 0);
  event.name = name;
  event.call = ticket;
  event.duration = duration;
  implementation_->tap.record(event);
}

void RankRuntime::note_last_step(const std::string& checkpointer, std::uint64_t ticket, std::string_view name,
                                 std::string_view detail, Duration duration, CallResult outcome) {
  const RankConfig& config = implementation_->config;
  if (outcome.ok() && duration < config.options.trace_store_operations) return;
  Tap tap(implementation_->tracer, Actor::kRuntime);
  tap.set_call(ticket);
  ObservedEvent event = call_event(EventKind::kOperation, {}, checkpointer, 0, outcome.ok());
  event.name = name;
  event.phase = Phase::kRead;
  event.duration = duration;
  event.text = outcome.ok() ? detail : std::string_view(outcome.failures.begin()->second.what);
  const std::uint64_t id = tap.record(event);
  tap.set_cause(id);
  for (auto& [rank, failure] : outcome.failures) failure.trace_position = id;
  record_outcome(tap, config.rank, checkpointer, 0, outcome);
}

void RankRuntime::note(std::string_view what) { implementation_->tap.record(EventKind::kState, what, 0, true); }

void RankRuntime::write_trace(const std::string& path) const {
  const auto& config = implementation_->config;
  const TraceSnapshot taken = implementation_->tracer->snapshot();
  write_trace_file(path, trace_header(config.incarnation, config.rank, config.world_size, TraceSource::kRing), taken.events);
}

void RankRuntime::write_trace_in(const std::string& directory) const {
  const auto& config = implementation_->config;
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) throw system_error("make the directory for traces", directory, failed.value());
  write_trace(directory + "/" +
              trace_file_name(trace_header(config.incarnation, config.rank, config.world_size, TraceSource::kRing)));
}

std::string RankRuntime::dump_trace() const { return implementation_->tracer->dump(); }

}  // namespace cairn
