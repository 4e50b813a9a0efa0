#include <cairn/actors/rank_supervisor.hpp>

#include <utility>
#include <vector>

#include <caf/actor_cast.hpp>
#include <caf/system_messages.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/call_events.hpp>
#include <cairn/actors/exit_reason.hpp>
#include <cairn/actors/machine_table.hpp>
#include <cairn/actors/peer_down.hpp>
#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/actors/task_run.hpp>
#include <cairn/actors/timer_queue.hpp>
#include <cairn/base/call_phase.hpp>
#include <cairn/messages/codec.hpp>

namespace cairn {
namespace {

// The state of one checkpointer.
struct Slot {
  Slot(const protocol::Identity& identity, const RuntimeOptions& options) : machine(identity, options) {}
  bool is_idle() const { return context == nullptr; }
  std::uint64_t counter_seen() const { return machine.counter_seen(); }

  protocol::RankMachine machine;
  std::shared_ptr<CallContext> context;  // of the running call
};

protocol::Identity world_of(const RankConfig& config) {
  protocol::Identity world;
  world.rank = config.rank;
  world.world_size = config.world_size;
  world.incarnation = config.incarnation;
  return world;
}

template <class Task>
inline constexpr bool is_for_planner =
    std::is_same_v<Task, protocol::GatherState> || std::is_same_v<Task, protocol::CreateLocalPlan> ||
    std::is_same_v<Task, protocol::CreateGlobalSavePlan> || std::is_same_v<Task, protocol::CreateGlobalLoadPlan> ||
    std::is_same_v<Task, protocol::Decide>;

class Supervisor : public SupervisorActor::base {
 public:
  Supervisor(caf::actor_config& actor_config, const RankConfig& config, const std::shared_ptr<LinksFactory>& links,
             std::shared_ptr<Tracer> tracer)
      : SupervisorActor::base(actor_config),
        config_(config),
        links_factory_(links),
        tap_(std::move(tracer), Actor::kSupervisor),
        slots_(world_of(config), config.options),
        timers_(config.options.heartbeat_timeout) {}

  SupervisorActor::behavior_type make_behavior() override {
    const auto self = caf::actor_cast<caf::actor>(this);
    inbox_ = std::make_shared<Inbox>(self);
    set_down_handler([this](caf::down_msg& message) { on_child_down(message); });
    set_exception_handler([this](std::exception_ptr& exception) {
      caf::error reason = exit_reason_of(exception);
      fail_all("the supervisor of rank " + std::to_string(config_.rank) + " ended: " + describe_exit(reason));
      return reason;
    });
    if (config_.world_size > 1) {
      links_ = links_factory_->spawn(system(), config_.rank, config_.options, self);
      monitor(links_);
      // Opens a link to the default coordinator, so that it notices when this rank ends, even
      // before its first call.
      if (config_.rank != protocol::kRegistrar) caf::anon_send(links_, LinkOpen{protocol::kRegistrar});
    }
    start_planner();
    start_storage();
    start_coordinator();
    return {
        [this](const Traced<StartCall>& message) { tap_.handle(message, [&] { start(message.value.context); }); },
        [this](const Traced<CancelCall>& message) {
          tap_.handle(message, [&] { step(message.value.checkpointer, message.value.request); });
        },
        [this](const Traced<TaskReport>& message) { tap_.handle(message, [&] { on_task_report(message.value); }); },
        [this](const Traced<CoordinatorSend>& message) {
          tap_.handle(message, [&] { send(message.value.checkpointer, message.value.send); });
        },
        [this](const Traced<CoordinatorTask>& message) { tap_.handle(message, [&] { run_for_coordinator(message.value); }); },
        [this](const Traced<Unsent>& message) {
          tap_.handle(message, [&] {
            tell_coordinator(message.value.checkpointer, message.value.down);
            step(message.value.checkpointer, message.value.down);
            stop_if_idle();
          });
        },
        [this](const Traced<CoordinatorStopped>& message) {
          tap_.handle(message, [&] {
            coordinator_stopped_ = true;
            stop_if_idle();
          });
        },
        [this](const Traced<Stop>& message) { tap_.handle(message, [&] { stop(message.value.latch); }); },
        [this](StopNow) { stop_now(); },
        [this](WakeUp) {
          for (const auto& [checkpointer, timer] : timers_.take_due(clock().now())) time_out(checkpointer, timer);
          timers_.arm(this, true);
          stop_if_idle();
        },
        [this](const LinkDrop& drop) {
          if (links_) caf::anon_send(links_, drop);
        },
        [this](const LinkUp& up) { on_link_up(up); },
        [this](const LinkDown& down) { on_link_down(down); },
        [this](const LinkMessage& message) { on_link_message(message); },
        [this](const LinkRefused& refused) { ignore(refused.what); },
        [this](GetChildren) {
          return Children{planner_, storage_, coordinator_};
        },
    };
  }

  void on_exit() override {
    inbox_->close();
    if (links_) caf::anon_send(links_, LinkClose{});
    for (const auto& child :
         {caf::actor_cast<caf::actor>(planner_), caf::actor_cast<caf::actor>(storage_), caf::actor_cast<caf::actor>(coordinator_)})
      if (child) caf::anon_send_exit(child, caf::exit_reason::user_shutdown);
    links_ = nullptr;
    planner_ = PlannerActor();
    storage_ = StorageActor();
    coordinator_ = CoordinatorActor();
    for (auto& [name, slot] : slots_)
      if (slot.context) slot.context->tell_to_stop();  // a running task ends after its hook
    slots_.clear();
    if (latch_) latch_->set();
  }

 private:
  // --- calls -------------------------------------------------------------------------------------

  Failure own_failure(FailureKind kind, ErrorCode code, const std::string& what, Phase phase = Phase::kJoin) const {
    return protocol::make_failure(config_.rank, phase, kind, code, "supervisor", what);
  }

  // Sets the failure that the trainer sees if this actor ends before the calls.
  void fail_all(const std::string& why) {
    for (auto& [name, slot] : slots_) {
      if (!slot.context) continue;
      const auto phase = phase_of(slot.machine.state(), slot.context->operation());
      slot.context->set_last_resort(own_failure(FailureKind::kInternal, ErrorCode::kInternal, why, phase.value_or(Phase::kJoin)));
    }
  }

  void start(const std::shared_ptr<CallContext>& context) {
    if (stopping_) {
      Failure failure = own_failure(FailureKind::kCancelled, ErrorCode::kCancelled,
                                    "the runtime of rank " + std::to_string(config_.rank) + " is being shut down");
      CallResult outcome;
      outcome.failures.emplace(config_.rank, std::move(failure));
      context->deliver(std::move(outcome));
      return;
    }
    const std::string& checkpointer = context->call().id.checkpointer;
    slot_of(checkpointer).context = context;
    protocol::CallStarted started;
    started.ticket = context->ticket();
    started.ordinal = context->call().id.ordinal;
    started.operation = context->operation();
    started.checkpoint_id = context->call().checkpoint_id;
    started.coordinator_rank = context->call().coordinator_rank;
    started.options_digest = context->call().options_digest;
    started.stateful_keys = context->call().stateful_keys;
    started.deadline = context->call().deadline;
    if (started.operation == protocol::Operation::kAgree) started.text = context->agreement().text;
    step(checkpointer, started);
  }

  Slot& slot_of(const std::string& checkpointer) {
    if (auto* known = slots_.find(checkpointer)) return *known;
    Slot& made = slots_.make(checkpointer);
    return made;
  }

  // While it lives, events are recorded as those of the slot's call.
  struct OfCall {
    Tap& tap;
    const std::uint64_t before;
    OfCall(Tap& of, const Slot& slot) : tap(of), before(tap.set_call(slot.context ? slot.context->ticket() : 0)) {}
    OfCall(const OfCall&) = delete;
    OfCall& operator=(const OfCall&) = delete;
    ~OfCall() { tap.set_call(before); }
  };

  // An exception from a machine ends its call and no other.
  void step(const std::string& checkpointer, const protocol::Event& event) {
    Slot* const found = slots_.find(checkpointer);
    if (found == nullptr) return;
    Slot& slot = *found;
    const OfCall of_call(tap_, slot);
    protocol::Effects effects;
    try {
      effects = slot.machine.step(event);
    } catch (const std::exception& error) {
      return abort_call(checkpointer, slot, error.what());
    }
    if (auto* progress = progress_of(slot)) progress->follow(slot.machine.state(), effects);  // before tasks of that step run
    // After the other effects, as it may take 0.3 s; but before the end of the call, whose trace
    // contains the stacks.
    std::shared_ptr<CallContext> told_to_stop;
    const auto report_stopped = [&] {
      const auto context = std::exchange(told_to_stop, nullptr);
      if (!context) return;
      record_stacks(tap_, *context, slot.machine.counter(), config_.options.trace_store_operations);
      if (auto outcome = slot.machine.outcome_before_end()) context->report_early(std::move(*outcome));
    };
    for (auto& effect : effects) {
      if (auto* send_effect = std::get_if<protocol::Send>(&effect)) {
        send(checkpointer, *send_effect);
      } else if (auto* task = std::get_if<protocol::RunTask>(&effect)) {
        run(slot, std::move(*task), 0);
      } else if (std::holds_alternative<protocol::StopTasks>(effect)) {
        slot.context->tell_to_stop();
        told_to_stop = slot.context;
      } else if (const auto* timer = std::get_if<protocol::StartTimer>(&effect)) {
        timers_.start({checkpointer, timer->timer}, clock().now(), timer->after);
      } else if (const auto* stopped_timer = std::get_if<protocol::StopTimer>(&effect)) {
        timers_.stop({checkpointer, stopped_timer->timer});
      } else if (const auto* changed = std::get_if<protocol::StateChanged>(&effect)) {
        record_effect(tap_, *changed, checkpointer, slot.machine.counter());
      } else if (const auto* ignored = std::get_if<protocol::InputIgnored>(&effect)) {
        record_effect(tap_, *ignored, checkpointer, slot.machine.counter());
      } else if (const auto* shown = std::get_if<protocol::ProgressTold>(&effect)) {
        if (auto* progress = progress_of(slot)) progress->take(shown->job);
      } else if (auto* finished = std::get_if<protocol::CallResult>(&effect)) {
        report_stopped();
        const auto context = std::exchange(slot.context, nullptr);
        record_outcome(tap_, config_.rank, checkpointer, slot.machine.counter(), *finished);
        context->deliver(std::move(*finished));
      }
    }
    timers_.arm(this);
    report_stopped();
  }

  static CallProgress* progress_of(const Slot& slot) { return slot.context ? slot.context->call().progress.get() : nullptr; }

  void time_out(const std::string& checkpointer, protocol::Timer timer) {
    if (timer != protocol::Timer::kProgress) {
      tap_.set_cause(record_state(tap_, timer, checkpointer, 0));
      const Slot* const slot = slots_.find(checkpointer);
      step(checkpointer, protocol::TimerFired{timer, slot && slot->context ? slot->context->running_hook() : nullptr});
      return tap_.set_cause(0);
    }
    const Slot* const slot = slots_.find(checkpointer);
    if (slot && slot->context) {
      const OfCall of_call(tap_, *slot);
      record_stacks(tap_, *slot->context, slot->machine.counter(), config_.options.cancel_grace);
    }
    const auto* const progress = slot ? progress_of(*slot) : nullptr;
    step(checkpointer, protocol::ProgressDue{progress ? progress->seen().own : protocol::Moved{}});
  }

  void abort_call(const std::string& checkpointer, Slot& slot, const std::string& why) {
    Failure failure =
        own_failure(FailureKind::kInternal, ErrorCode::kInternal,
                    "the protocol of rank " + std::to_string(config_.rank) + " broke an invariant of its own: " + why);
    timers_.stop({checkpointer, protocol::Timer::kAnswer});
    timers_.stop({checkpointer, protocol::Timer::kCall});
    timers_.stop({checkpointer, protocol::Timer::kProgress});
    if (slot.context) {
      slot.context->tell_to_stop();
      slot.context->set_last_resort(failure);
      const int coordinator = slot.machine.coordinator_rank();
      protocol::Send cancel{coordinator, slot.machine.counter(), protocol::Cancel{slot.context->ticket(), std::move(failure)}};
      if (coordinator >= 0 && coordinator < config_.world_size) send(checkpointer, cancel);
    }
    slots_.erase(checkpointer);  // `done` is called after the last hook has released the call
  }

  // --- tasks -------------------------------------------------------------------------------------

  void run(Slot& slot, protocol::RunTask task, std::uint64_t coordinator) {
    const OfCall of_call(tap_, slot);
    const auto task_run = std::make_shared<TaskRun>(inbox_, tap_, coordinator, task, slot.context, config_.injector);
    std::visit([&](auto& request) { send_request(std::move(request), task_run); }, task.task);
  }

  // If the child is gone for good, the request is dropped and its TaskRun reports the failure.
  template <class Task>
  void send_request(Task task, std::shared_ptr<TaskRun> task_run) {
    auto request = tap_.wrap(Request<Task>{std::move(task), std::move(task_run)});
    if constexpr (is_for_planner<Task>) {
      if (planner_) caf::anon_send(planner_, std::move(request));
    } else {
      if (storage_) caf::anon_send(storage_, std::move(request));
    }
  }

  void run_for_coordinator(const CoordinatorTask& message) {
    const protocol::RunTask& task = message.task;
    Slot* const slot = slots_.find(message.checkpointer);
    // A rank learns the counter of an agreement only from its outcome.
    const bool is_of_call =
        slot && (std::holds_alternative<protocol::Decide>(task.task) || slot->machine.counter() == task.counter);
    const bool runs = is_of_call && slot->context && slot->machine.state() != protocol::RankMachine::State::kEnding;
    if (runs) return run(*slot, task, message.coordinator);
    Failure failure = own_failure(FailureKind::kCancelled, ErrorCode::kCancelled,
                                  std::string(protocol::name_of(protocol::main_hook_of(task.task), task.operation)) +
                                      " could not run: the call of rank " + std::to_string(config_.rank) + " has ended",
                                  task.phase);
    tell_coordinator(message.checkpointer, protocol::TaskEnded{task.sequence, std::move(failure)});
  }

  void on_task_report(const TaskReport& report) {
    if (report.coordinator == 0) {
      step(report.checkpointer, report.ended);
    } else if (report.coordinator == coordinator_life_) {
      tell_coordinator(report.checkpointer, report.ended);
    }
    stop_if_idle();
  }

  // --- messages ----------------------------------------------------------------------------------

  // Messages of a rank to itself pass here too, so that a fault site means the same on every rank.
  void meet_faults(FaultSite site, const protocol::Message& message) {
    if (!config_.injector) return;
    for (const auto& rule : config_.injector->pass(site, protocol::name_of(message), config_.rank))
      if (rule.action == FaultAction::kDropLink && links_) caf::anon_send(links_, LinkDrop{rule.peer.value_or(-1)});
  }

  void send(const std::string& checkpointer, const protocol::Send& message) {
    meet_faults(FaultSite::kSend, message.body);
    if (message.to == config_.rank) return deliver(config_.rank, checkpointer, message.counter, message.body);
    if (!links_) return;
    protocol::Envelope envelope;
    envelope.attempt = {config_.incarnation, checkpointer, message.counter};
    envelope.sender = config_.rank;
    envelope.cause = tap_.cause();
    envelope.body = message.body;
    if (!protocol::is_of_progress(message.body)) {
      ObservedEvent event = call_event(EventKind::kSent, protocol::kind_of(message.body), checkpointer, message.counter, true);
      event.peer = message.to;
      envelope.id = tap_.record(event);
    }
    try {
      auto encoded = encoder_.encode(envelope);
      auto own = std::make_shared<const std::string>(std::move(encoded.own));
      caf::anon_send(links_, LinkSend{message.to, std::move(own), std::move(encoded.shared)});
    } catch (const Error& error) {
      // For this call the other rank counts as unreachable. Posted as a message, so that no machine
      // is stepped within a step.
      protocol::PeerDown down;
      down.rank = message.to;
      down.reachable = true;
      down.code = error.code();
      down.why = std::string(protocol::name_of(message.body)) + " cannot be sent: " + error.what();
      inbox_->post(tap_.wrap(Unsent{checkpointer, std::move(down)}));
    }
  }

  void deliver(int from, const std::string& checkpointer, std::uint64_t counter, const protocol::Message& body) {
    meet_faults(FaultSite::kReceive, body);
    if (protocol::is_for_coordinator(body)) {
      if (!coordinator_) return refuse(from, checkpointer);
      return tell_coordinator(checkpointer, protocol::Received{from, counter, body});
    }
    const auto* const down = std::get_if<protocol::CoordinatorDown>(&body);
    const bool of_every_call = (down && down->ticket == 0) || std::holds_alternative<protocol::Unreadable>(body);
    if (of_every_call) return step_all(protocol::Received{from, counter, body});
    // A rank that has made no call must answer StatusRequest too.
    if (std::holds_alternative<protocol::StatusRequest>(body)) slot_of(checkpointer);
    step(checkpointer, protocol::Received{from, counter, body});
    stop_if_idle();
  }

  void step_all(const protocol::Event& event) {
    std::vector<std::string> names;
    for (const auto& [name, slot] : slots_) names.push_back(name);
    for (const auto& name : names) step(name, event);
    stop_if_idle();
  }

  void tell_coordinator(const std::string& checkpointer, protocol::Event event) {
    if (coordinator_) caf::anon_send(coordinator_, tap_.wrap(CoordinatorEvent{checkpointer, std::move(event)}));
  }

  // --- other ranks -------------------------------------------------------------------------------

  void on_link_up(const LinkUp& up) {
    ObservedEvent event;
    event.kind = EventKind::kHandled;
    event.what = LinkChange::kUp;
    event.peer = up.rank;
    tap_.record(event);
    if (coordinator_) caf::anon_send(coordinator_, tap_.wrap(CoordinatorNews{protocol::PeerUp{up.rank}}));
    step_all(protocol::PeerUp{up.rank});
  }

  void on_link_down(const LinkDown& down) {
    const protocol::PeerDown news = peer_down_of(down);
    ObservedEvent event;
    event.kind = EventKind::kHandled;
    event.what = down.cause == LinkDownCause::kLeft ? LinkChange::kLeft : LinkChange::kDown;
    event.peer = down.rank;
    event.text = news.why;
    event.ok = false;
    tap_.set_cause(tap_.record(event));
    peer_down(news);
    tap_.set_cause(0);
  }

  void peer_down(const protocol::PeerDown& event) {
    if (coordinator_) caf::anon_send(coordinator_, tap_.wrap(CoordinatorNews{event}));
    step_all(event);
  }

  void ignore(const char* why, int peer = -1) {
    ObservedEvent event;
    event.kind = EventKind::kState;
    event.what = Ignored::kInput;
    event.name = why;
    event.peer = peer;
    event.ok = false;
    tap_.record(event);
  }

  void on_link_message(const LinkMessage& message) {
    protocol::Envelope envelope;
    std::string fault;
    try {
      envelope = protocol::decode(*message.bytes);
      if (envelope.sender != message.rank) fault = "its envelope names rank " + std::to_string(envelope.sender) + " as its sender";
    } catch (const std::exception& error) {
      fault = error.what();
    }
    if (!fault.empty()) {
      tap_.record(EventKind::kHandled, "undecodable message", 0, false, message.rank, message.bytes->size());
      protocol::PeerDown event;
      event.rank = message.rank;
      event.reachable = true;
      event.code = ErrorCode::kCorrupt;
      event.why = "it sent a message that cannot be read: " + fault;
      peer_down(event);
      return send("", protocol::Send{message.rank, 0, protocol::Unreadable{protocol::failure_of(event, Phase::kJoin)}});
    }
    if (envelope.attempt.incarnation != config_.incarnation) {
      return ignore("message of another incarnation", message.rank);
    }
    const protocol::Attempt& attempt = envelope.attempt;
    const auto* const join = std::get_if<protocol::Join>(&envelope.body);
    // This rank may not have called yet.
    if (join != nullptr && join->operation == protocol::Operation::kAgree)
      tap_.tracer()->keep_out_of_ring(checkpointer_key(attempt.checkpointer));
    ObservedEvent event;
    if (!protocol::is_of_progress(envelope.body))
      event = call_event(EventKind::kHandled, protocol::kind_of(envelope.body), attempt.checkpointer, attempt.counter, true);
    event.peer = message.rank;
    event.bytes = message.bytes->size();
    event.cause = envelope.id;
    tap_.handle_from(event, [&] {
      try {
        deliver(message.rank, attempt.checkpointer, attempt.counter, envelope.body);
      } catch (const std::exception&) {
        record_end(attempt);
        throw;
      }
    });
  }

  // Records the exception that is about to end this actor, for the reader of the trace.
  void record_end(const protocol::Attempt& attempt) {
    std::exception_ptr exception = std::current_exception();
    const std::string text = describe_exit(exit_reason_of(exception));
    ObservedEvent event;
    event.kind = EventKind::kOperation;
    event.attempt = attempt.counter;
    event.checkpointer = checkpointer_key(attempt.checkpointer);
    event.name = "handler";
    event.text = text;
    event.ok = false;
    tap_.record(event);
  }

  // --- children ----------------------------------------------------------------------------------

  void start_planner() {
    planner_ = system().spawn(planner_actor, tap_.tracer());
    monitor(planner_);
  }
  void start_storage() {
    storage_ = system().spawn(storage_actor, tap_.tracer());
    monitor(storage_);
  }
  void start_coordinator() {
    coordinator_ = spawn_coordinator(system(), inbox_, tap_.tracer(), world_of(config_), config_.options, ++coordinator_life_);
    monitor(coordinator_);
  }

  void on_child_down(const caf::down_msg& message) {
    const std::string why = describe_exit(message.reason);
    if (links_ && message.source == links_.address()) {
      links_ = nullptr;
      for (int rank = 0; rank < config_.world_size; ++rank) {
        if (rank == config_.rank) continue;
        protocol::PeerDown event;
        event.rank = rank;
        event.kind = FailureKind::kInternal;
        event.code = ErrorCode::kInternal;
        event.why = "the links actor of rank " + std::to_string(config_.rank) + " died";
        peer_down(event);
      }
      return;
    }
    if (planner_ && message.source == planner_.address()) {
      planner_ = PlannerActor();
      if (may_restart(Actor::kPlanner, planner_restarts_)) start_planner();
      step_all(protocol::ActorDied{"planner", why});
    } else if (storage_ && message.source == storage_.address()) {
      storage_ = StorageActor();
      if (may_restart(Actor::kStorage, storage_restarts_)) start_storage();
      step_all(protocol::ActorDied{"storage", why});
    } else if (coordinator_ && message.source == coordinator_.address()) {
      coordinator_ = CoordinatorActor();
      if (may_restart(Actor::kCoordinator, coordinator_restarts_)) start_coordinator();
      if (stopping_) coordinator_stopped_ = true;  // otherwise its replacement reports this
      for (int rank = 0; rank < config_.world_size; ++rank) refuse(rank, "");
    }
    stop_if_idle();
  }

  bool may_restart(Actor actor, unsigned& restarts) {
    if (stopping_ || restarts >= config_.options.child_restarts_max) return false;
    ++restarts;
    ObservedEvent event;
    event.kind = EventKind::kState;
    event.what = Restarted{actor};
    event.ok = false;
    tap_.record(event);
    return true;
  }

  // Tells a rank that every call which this rank coordinates has failed.
  void refuse(int rank, const std::string& checkpointer) {
    Failure failure = own_failure(FailureKind::kInternal, ErrorCode::kInternal,
                                  "the coordinator actor of rank " + std::to_string(config_.rank) + " died");
    protocol::Send message{rank, 0, protocol::CoordinatorDown{std::move(failure), 0}};
    if (rank == config_.rank)
      inbox_->post(tap_.wrap(CoordinatorSend{checkpointer, std::move(message)}));  // posted: no machine is stepped within a step
    else
      send(checkpointer, message);
  }

  // --- the end -----------------------------------------------------------------------------------

  void stop(const std::shared_ptr<StopLatch>& latch) {
    latch_ = latch;
    stopping_ = true;
    // Calls that this rank coordinates end by the coordinator's outcome, as on all other ranks.
    if (coordinator_)
      caf::anon_send(coordinator_, tap_.wrap(Stop{}));
    else
      coordinator_stopped_ = true;
    std::vector<std::string> names;
    for (const auto& [name, slot] : slots_)
      if (slot.context && (!coordinator_ || slot.machine.coordinator_rank() != config_.rank)) names.push_back(name);
    for (const auto& name : names)
      step(name, protocol::Cancelled{"the runtime of rank " + std::to_string(config_.rank) + " was shut down"});
    stop_if_idle();
  }

  void stop_if_idle() {
    if (!stopping_ || !coordinator_stopped_) return;
    for (const auto& [name, slot] : slots_)
      if (slot.context) return;
    quit();
  }

  void stop_now() {
    for (auto& [name, slot] : slots_) {
      if (!slot.context) continue;
      Failure failure =
          own_failure(FailureKind::kBusy, ErrorCode::kDeadline,
                      "a hook of rank " + std::to_string(config_.rank) + " had not ended when its runtime was shut down");
      slot.context->set_last_resort(std::move(failure));
    }
    quit();
  }

  const RankConfig config_;
  const std::shared_ptr<LinksFactory> links_factory_;
  protocol::EnvelopeEncoder encoder_;
  Tap tap_;
  std::shared_ptr<Inbox> inbox_;
  caf::actor links_;
  PlannerActor planner_;
  StorageActor storage_;
  CoordinatorActor coordinator_;
  unsigned planner_restarts_ = 0;
  unsigned storage_restarts_ = 0;
  unsigned coordinator_restarts_ = 0;
  std::uint64_t coordinator_life_ = 0;

  MachineTable<Slot> slots_;
  TimerQueue timers_;
  bool stopping_ = false;
  bool coordinator_stopped_ = false;
  std::shared_ptr<StopLatch> latch_;
};

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, const RankConfig& config, std::shared_ptr<LinksFactory> links,
                                 std::shared_ptr<Tracer> tracer) {
  return system.spawn<Supervisor>(config, std::move(links), std::move(tracer));
}

}  // namespace cairn
