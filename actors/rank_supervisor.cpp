#include <cairn/actors/rank_supervisor.hpp>

#include <set>

#include <caf/actor_cast.hpp>
#include <caf/system_messages.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <cairn/actors/call_context.hpp>
#include <cairn/actors/call_events.hpp>
#include <cairn/actors/links/exit_reason.hpp>
#include <cairn/actors/peers.hpp>
#include <cairn/actors/protocol/call_register.hpp>
#include <cairn/actors/protocol/succession.hpp>
#include <cairn/actors/restart_budget.hpp>
#include <cairn/actors/task_run.hpp>
#include <cairn/actors/timer_queue.hpp>
#include <cairn/base/call_phase.hpp>

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

protocol::Identity world_of(const RankConfig& config, std::uint64_t counter_floor) {
  return {config.rank, config.world_size, config.incarnation, "", counter_floor};
}

class Supervisor : public SupervisorActor::base {
 public:
  Supervisor(caf::actor_config& actor_config, const RankConfig& config, const std::shared_ptr<LinksFactory>& links,
             std::shared_ptr<Tracer> tracer, std::shared_ptr<Orders> orders)
      : SupervisorActor::base(actor_config),
        config_(config),
        links_factory_(links),
        tap_(std::move(tracer), Actor::kSupervisor),
        peers_(config_, tap_),
        orders_(std::move(orders)),
        slots_(world_of(config, orders_->counter_seen), config.options),
        timers_(config.options.heartbeat_timeout) {}

  SupervisorActor::behavior_type make_behavior() override {
    inbox_ = std::make_shared<Inbox>(caf::actor_cast<caf::actor>(this));
    set_down_handler([this](caf::down_msg& message) { on_child_down(message); });
    set_exception_handler([this](std::exception_ptr& exception) {
      caf::error reason = exit_reason_of(exception);
      const std::string why = "the supervisor of rank " + std::to_string(config_.rank) + " ended: " + describe_exit(reason);
      give_up_all([&](Phase phase) { return own_failure(FailureKind::kInternal, ErrorCode::kInternal, why, phase); });
      return reason;
    });
    start_missing();
    return {
        [this](TakeOrders) { take_orders(); },
        [this](const Traced<CancelCall>& message) {
          tap_.handle(message, [&] { step(message.value.checkpointer, message.value.request); });
        },
        [this](const Traced<TaskReport>& message) { tap_.handle(message, [&] { on_task_report(message.value); }); },
        [this](const Traced<CoordinatorEffect>& message) {
          const CoordinatorEffect& of = message.value;
          if (of.life != coordinator_life_) return peers_.ignore("effect of a dead coordinator");
          tap_.handle(message, [&] {
            if (const auto* task = std::get_if<protocol::RunTask>(&of.effect)) return run_for_coordinator(of.checkpointer, *task);
            send(of.checkpointer, std::get<protocol::Send>(of.effect));
          });
        },
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
        [this](const Traced<Stop>& message) { tap_.handle(message, [&] { stop(message.value.stopped); }); },
        [this](StopNow) { stop_now(); },
        [this](WakeUp) {
          for (const auto& [checkpointer, timer] : timers_.take_due(clock().now())) time_out(checkpointer, timer);
          timers_.arm(this, true);
          stop_if_idle();
        },
        [this](const LinkDrop& drop) { peers_.drop(drop); },
        [this](const LinkUp& up) { tell_all(peers_.take(up)); },
        [this](const LinkDown& down) {
          tell_all(peers_.take(down));
          tap_.set_cause(0);
        },
        [this](const LinkMessage& message) { on_link_message(message); },
        [this](const LinkRefused& refused) { peers_.ignore(refused.what); },
        [this](GetChildren) {
          return Children{planner_, storage_, coordinator_};
        },
    };
  }

  void on_exit() override {
    inbox_->close();
    if (leaves_ && peers_.links) caf::anon_send(peers_.links, LinkClose{});  // without it the links see that this actor has died
    for (const auto& child :
         {caf::actor_cast<caf::actor>(planner_), caf::actor_cast<caf::actor>(storage_), caf::actor_cast<caf::actor>(coordinator_)})
      if (child) caf::anon_send_exit(child, caf::exit_reason::user_shutdown);
    peers_.links = nullptr;
    planner_ = storage_ = TaskActor();
    coordinator_ = CoordinatorActor();
    links_factory_.reset();
    give_up_all([](Phase) { return std::nullopt; });
    slots_.clear();
    if (stopped_) std::exchange(stopped_, nullptr)->set_value();
  }

 private:
  // --- calls -------------------------------------------------------------------------------------

  Failure own_failure(FailureKind kind, ErrorCode code, const std::string& what, Phase phase = Phase::kJoin) const {
    return protocol::make_failure(config_.rank, phase, kind, code, "supervisor", what);
  }

  // Ends the running calls, because this actor ends. A running task ends after its hook.
  template <class FailureOf>
  void give_up_all(const FailureOf& failure_of) {
    for (auto& [name, slot] : slots_) {
      if (!slot.context) continue;
      slot.context->tell_to_stop();
      auto failure = failure_of(phase_of(slot.machine.state(), slot.context->operation()).value_or(Phase::kJoin));
      std::exchange(slot.context, nullptr)->give_up(std::move(failure));
    }
    for (const auto& call : std::exchange(starting_, {})) call.value.context->give_up(failure_of(Phase::kJoin));
  }

  void take_orders() {
    start_missing();
    for (const auto& [checkpointer, lost] : orders_->take_lost_calls()) {
      tell_coordinator_of(checkpointer, lost);
      if (lost.join.coordinator_rank == config_.rank) continue;
      send_cancel(checkpointer, lost.join.coordinator_rank, 0, lost.join.ticket, ungrouped(lost.ending->failures).at(config_.rank));
    }
    starting_ = orders_->take_calls();
    for (const auto& call : starting_) tap_.handle(call, [&] { start(call.value.context); });
    starting_.clear();
    stop_if_idle();
  }

  // A new coordinator must know the last call, so that ranks that did not hear its outcome do.
  void tell_coordinator_of(const std::string& checkpointer, const protocol::EndedCall& call) {
    if (call.join.coordinator_rank != config_.rank) return;
    tell_coordinator(checkpointer, protocol::Received{config_.rank, 0, call.join});
    auto reply = protocol::ended_reply(call.join.ordinal, config_.rank, call.join.ticket, call.ending);
    tell_coordinator(checkpointer, protocol::Received{config_.rank, 0, std::move(reply)});
  }

  void start(const std::shared_ptr<CallContext>& context) {
    if (stopping_) {
      CallResult outcome;
      outcome.failures.emplace(config_.rank,
                               own_failure(FailureKind::kCancelled, ErrorCode::kCancelled,
                                           "the runtime of rank " + std::to_string(config_.rank) + " is being shut down"));
      return context->end(std::move(outcome));
    }
    const std::string& checkpointer = context->call().id.checkpointer;
    slot_of(checkpointer).context = context;
    step(checkpointer, context->started());
  }

  Slot& slot_of(const std::string& checkpointer) {
    auto* const known = slots_.find(checkpointer);
    return known ? *known : slots_.make(checkpointer);
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
    if (slot.counter_seen() > orders_->counter_seen) orders_->counter_seen = slot.counter_seen();
    if (auto* progress = progress_of(slot)) progress->follow(slot.machine.state(), effects);  // before tasks of that step run
    // After the other effects, as it may take 0.3 s; but before the end of the call, whose trace
    // contains the stacks.
    bool told_to_stop = false;
    const auto report_stopped = [&] {
      if (!std::exchange(told_to_stop, false) || !slot.context) return;
      record_stacks(tap_, *slot.context, slot.machine.counter(), config_.options.trace_store_operations);
      if (auto outcome = slot.machine.outcome_before_end()) slot.context->report_early(std::move(*outcome));
    };
    for (auto& effect : effects) {
      if (auto* send_effect = std::get_if<protocol::Send>(&effect)) {
        send(checkpointer, *send_effect);
      } else if (auto* task = std::get_if<protocol::RunTask>(&effect)) {
        run(slot, std::move(*task), 0);
      } else if (std::holds_alternative<protocol::StopTasks>(effect)) {
        slot.context->tell_to_stop();
        told_to_stop = true;
      } else if (const auto* shown = std::get_if<protocol::ProgressTold>(&effect)) {
        if (auto* progress = progress_of(slot)) progress->take(shown->job);
      } else if (auto* finished = std::get_if<protocol::CallResult>(&effect)) {
        report_stopped();
        record_outcome(tap_, config_.rank, checkpointer, slot.machine.counter(), *finished);
        if (finished->ok()) budgets_.clear();
        if (const auto* last = slot.machine.last_call(); last && last->join.ticket == slot.context->ticket())
          orders_->end(checkpointer, *last, false);
        std::exchange(slot.context, nullptr)->end(std::move(*finished));
      } else {
        perform_own(effect, tap_, timers_, clock().now(), checkpointer, slot.machine.counter());
      }
    }
    timers_.arm(this);
    report_stopped();
  }

  static CallProgress* progress_of(const Slot& slot) { return slot.context ? slot.context->call().progress.get() : nullptr; }

  void time_out(const std::string& checkpointer, protocol::Timer timer) {
    const Slot* const slot = slots_.find(checkpointer);
    const CallContext* const call = slot ? slot->context.get() : nullptr;
    if (timer != protocol::Timer::kProgress) {
      tap_.set_cause(record_state(tap_, timer, checkpointer, 0));
      step(checkpointer, protocol::TimerFired{timer, call ? call->running_hook() : nullptr});
      return tap_.set_cause(0);
    }
    if (call) {
      const OfCall of_call(tap_, *slot);
      record_stacks(tap_, *call, slot->machine.counter(), config_.options.cancel_grace);
    }
    const auto* const progress = call ? call->call().progress.get() : nullptr;
    step(checkpointer, protocol::ProgressDue{progress ? progress->seen().own : protocol::Moved{}});
  }

  void abort_call(const std::string& checkpointer, Slot& slot, const std::string& why) {
    Failure failure =
        own_failure(FailureKind::kInternal, ErrorCode::kInternal,
                    "the protocol of rank " + std::to_string(config_.rank) + " broke an invariant of its own: " + why);
    for (const auto timer : {protocol::Timer::kAnswer, protocol::Timer::kCall, protocol::Timer::kProgress})
      timers_.stop({checkpointer, timer});
    if (slot.context) {
      slot.context->tell_to_stop();
      send_cancel(checkpointer, slot.machine.coordinator_rank(), slot.machine.counter(), slot.context->ticket(), failure);
    }
    const auto context = std::exchange(slot.context, nullptr);
    slots_.erase(checkpointer);
    if (context) context->give_up(std::move(failure));
  }

  void send_cancel(const std::string& checkpointer, int coordinator, std::uint64_t counter, std::uint64_t ticket, Failure failure) {
    if (coordinator < 0 || coordinator >= config_.world_size) return;
    send(checkpointer, protocol::Send{coordinator, counter, protocol::Cancel{ticket, std::move(failure)}});
  }

  // --- tasks -------------------------------------------------------------------------------------

  void run(Slot& slot, protocol::RunTask task, std::uint64_t coordinator) {
    const OfCall of_call(tap_, slot);
    const Actor actor = protocol::actor_of(protocol::main_hook_of(task.task));
    auto run = std::make_shared<TaskRun>(inbox_, tap_, coordinator, std::move(task), slot.context, config_.injector);
    auto request = tap_.wrap(Request{std::move(run)});
    // If the child died too often, the request is dropped and its TaskRun reports the failure.
    if (const TaskActor& runner = actor == Actor::kPlanner ? planner_ : storage_) caf::anon_send(runner, std::move(request));
  }

  void run_for_coordinator(const std::string& checkpointer, const protocol::RunTask& task) {
    Slot* const slot = slots_.find(checkpointer);
    // A rank learns the counter of an agreement only from its outcome.
    const bool is_of_call =
        slot && (std::holds_alternative<protocol::Decide>(task.task) || slot->machine.counter() == task.counter);
    const bool runs = is_of_call && slot->context && slot->machine.state() != protocol::RankMachine::State::kEnding;
    if (runs) return run(*slot, task, coordinator_life_);
    Failure failure = own_failure(FailureKind::kCancelled, ErrorCode::kCancelled,
                                  std::string(protocol::name_of(protocol::main_hook_of(task.task), task.operation)) +
                                      " could not run: the call of rank " + std::to_string(config_.rank) + " has ended",
                                  task.phase);
    tell_coordinator(checkpointer, protocol::TaskEnded{task.sequence, std::move(failure)});
  }

  void on_task_report(const TaskReport& report) {
    if (report.coordinator == 0)
      step(report.checkpointer, report.ended);
    else if (report.coordinator == coordinator_life_)
      tell_coordinator(report.checkpointer, report.ended);
    stop_if_idle();
  }

  // --- messages ----------------------------------------------------------------------------------

  void send(const std::string& checkpointer, const protocol::Send& message) {
    peers_.meet_faults(FaultSite::kSend, message.body);
    if (message.to == config_.rank) return deliver(config_.rank, checkpointer, message.counter, message.body);
    // Posted as a message, so that no machine is stepped within a step.
    if (auto down = peers_.send(checkpointer, message)) inbox_->post(tap_.wrap(Unsent{checkpointer, std::move(*down)}));
  }

  void deliver(int from, const std::string& checkpointer, std::uint64_t counter, const protocol::Message& body) {
    peers_.meet_faults(FaultSite::kReceive, body);
    if (protocol::is_for_coordinator(body)) {
      if (!coordinator_) return refuse(from, checkpointer, "too often");
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
    step_those(event, [](const Slot&) { return true; });
  }
  template <class Applies>
  void step_those(const protocol::Event& event, const Applies& applies) {
    std::vector<std::string> names;
    for (const auto& [name, slot] : slots_)
      if (applies(slot)) names.push_back(name);
    for (const auto& name : names) step(name, event);
    stop_if_idle();
  }

  void tell_coordinator(const std::string& checkpointer, protocol::Event event, bool is_for_all = false) {
    if (coordinator_) caf::anon_send(coordinator_, tap_.wrap(CoordinatorEvent{checkpointer, std::move(event), is_for_all}));
  }
  // For the machines of all checkpointers.
  void tell_all(const protocol::Event& event) {
    tell_coordinator("", event, true);
    step_all(event);
  }

  void on_link_message(const LinkMessage& message) {
    const auto found = peers_.read(message);
    if (const auto* down = std::get_if<protocol::PeerDown>(&found)) {
      tell_all(*down);
      return send("", protocol::Send{message.rank, 0, protocol::Unreadable{protocol::failure_of(*down, Phase::kJoin)}});
    }
    const auto& envelope = std::get<protocol::Envelope>(found);
    const protocol::Attempt& attempt = envelope.attempt;
    if (attempt.incarnation != config_.incarnation) return peers_.ignore("message of another incarnation", message.rank);
    const auto* const join = std::get_if<protocol::Join>(&envelope.body);
    // This rank may not have called yet.
    if (join != nullptr && join->operation == protocol::Operation::kAgree)
      tap_.tracer()->keep_out_of_ring(checkpointer_key(attempt.checkpointer));
    peers_.handle(message, envelope, [&] { deliver(message.rank, attempt.checkpointer, attempt.counter, envelope.body); });
  }

  // --- children ----------------------------------------------------------------------------------

  // Starts the children that do not run, unless they died too often.
  void start_missing() {
    if (!peers_.links && config_.world_size > 1 && may_start(Actor::kLinks)) {
      peers_.links = links_factory_->spawn(system(), config_.rank, config_.options, caf::actor_cast<caf::actor>(this));
      monitor(peers_.links);
      // Opens a link to the default coordinator, so that it notices when this rank ends, even
      // before its first call.
      if (config_.rank != protocol::kRegistrar) caf::anon_send(peers_.links, LinkOpen{protocol::kRegistrar});
    }
    if (!planner_ && may_start(Actor::kPlanner)) monitor(planner_ = system().spawn(planner_actor, tap_.tracer()));
    if (!storage_ && may_start(Actor::kStorage)) monitor(storage_ = system().spawn(storage_actor, tap_.tracer()));
    if (coordinator_ || !may_start(Actor::kCoordinator)) return;
    monitor(coordinator_ = spawn_coordinator(system(), inbox_, tap_.tracer(), world_of(config_, orders_->counter_seen),
                                             config_.options, ++coordinator_life_));
    for (const auto& [checkpointer, call] : orders_->ended_calls()) tell_coordinator_of(checkpointer, call);
  }

  bool may_start(Actor actor) {
    if (started_.insert(actor).second) return true;
    if (stopping_ || !budgets_[actor].take(config_.clock->now(), config_.options.child_restarts_max)) return false;
    tap_.record(call_event(EventKind::kState, Restarted{actor}, "", 0, false));
    return true;
  }

  template <class Child>
  static bool forget_if(Child& child, const caf::down_msg& message) {
    if (!child || message.source != child.address()) return false;
    child = Child();
    return true;
  }

  void on_child_down(const caf::down_msg& message) {
    const std::string why = describe_exit(message.reason);
    if (forget_if(peers_.links, message)) {
      start_missing();
      tell_all(protocol::ActorDied{Actor::kLinks, why});
    } else if (const bool is_planner = forget_if(planner_, message); is_planner || forget_if(storage_, message)) {
      start_missing();
      step_all(protocol::ActorDied{is_planner ? Actor::kPlanner : Actor::kStorage, why});
    } else if (forget_if(coordinator_, message)) {
      start_missing();
      if (stopping_) coordinator_stopped_ = true;  // otherwise its replacement reports this
      for (int rank = 0; rank < config_.world_size; ++rank) refuse(rank, "", why);
    }
    stop_if_idle();
  }

  // Tells a rank that every call which this rank coordinates has failed.
  void refuse(int rank, const std::string& checkpointer, const std::string& why) {
    Failure failure = own_failure(FailureKind::kInternal, ErrorCode::kInternal,
                                  "the coordinator actor of rank " + std::to_string(config_.rank) + " died: " + why);
    protocol::Send message{rank, 0, protocol::CoordinatorDown{std::move(failure), 0}};
    if (rank == config_.rank)  // posted: no machine is stepped within a step
      inbox_->post(tap_.wrap(CoordinatorEffect{coordinator_life_, checkpointer, std::move(message)}));
    else
      send(checkpointer, message);
  }

  // --- the end -----------------------------------------------------------------------------------

  void stop(const std::shared_ptr<std::promise<void>>& stopped) {
    stopped_ = stopped;
    stopping_ = true;
    // Calls that this rank coordinates end by the coordinator's outcome, as on all other ranks.
    coordinator_stopped_ = !coordinator_;
    if (coordinator_) caf::anon_send(coordinator_, tap_.wrap(Stop{}));
    step_those(
        protocol::Cancelled{"the runtime of rank " + std::to_string(config_.rank) + " was shut down"},
        [this](const Slot& slot) { return slot.context && (!coordinator_ || slot.machine.coordinator_rank() != config_.rank); });
  }

  void stop_if_idle() {
    if (!stopping_ || !coordinator_stopped_) return;
    for (const auto& [name, slot] : slots_)
      if (slot.context) return;
    leaves_ = true;
    quit();
  }

  void stop_now() {
    give_up_all([this](Phase) {
      return own_failure(FailureKind::kBusy, ErrorCode::kDeadline,
                         "a hook of rank " + std::to_string(config_.rank) + " had not ended when its runtime was shut down");
    });
    leaves_ = true;
    quit();
  }

  const RankConfig config_;
  std::shared_ptr<LinksFactory> links_factory_;
  Tap tap_;
  Peers peers_;
  const std::shared_ptr<Orders> orders_;
  std::shared_ptr<Inbox> inbox_;
  TaskActor planner_;
  TaskActor storage_;
  CoordinatorActor coordinator_;
  std::set<Actor> started_;  // at least once
  std::map<Actor, RestartBudget> budgets_;
  std::uint64_t coordinator_life_ = 0;
  std::vector<Traced<StartCall>> starting_;  // calls that were taken from the orders, until all of them are in slots

  MachineTable<Slot> slots_;
  TimerQueue timers_;
  bool stopping_ = false;
  bool leaves_ = false;  // ends as it was told to
  bool coordinator_stopped_ = false;
  std::shared_ptr<std::promise<void>> stopped_;
};

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, const RankConfig& config, std::shared_ptr<LinksFactory> links,
                                 std::shared_ptr<Tracer> tracer, std::shared_ptr<Orders> orders) {
  return system.spawn<Supervisor>(config, std::move(links), std::move(tracer), std::move(orders));
}

}  // namespace cairn
