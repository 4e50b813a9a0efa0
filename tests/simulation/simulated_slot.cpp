#include <cairn/tests/simulation/simulated_slot.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

#include <cairn/actors/call_events.hpp>
#include <cairn/actors/local_messages.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

using protocol::CoordinatorMachine;
using protocol::Operation;
using protocol::RankMachine;
using std::chrono::microseconds;

protocol::Identity identity_of(const Job& job, int rank, const std::string& name) {
  return {rank, job.size(), job.incarnation(), name};
}

const char* name_of(protocol::StandingKind kind) {
  switch (kind) {
    case protocol::StandingKind::kAbsent:
      return "absent";
    case protocol::StandingKind::kEnded:
      return "ended";
    case protocol::StandingKind::kAttached:
      return "attached";
    case protocol::StandingKind::kPromised:
      return "promised";
    case protocol::StandingKind::kOrphaned:
      return "orphaned";
  }
  return "?";
}

// The text that a rank contributes to an agreement.
std::string text_of(std::uint64_t call, int rank) {
  return "rank " + std::to_string(rank) + " in call " + std::to_string(call) + "; ";
}

bool is_outcome(const protocol::Effect& effect) {
  const auto* message = std::get_if<protocol::Send>(&effect);
  return message != nullptr && std::holds_alternative<protocol::Outcome>(message->body);
}

}  // namespace

SimulatedSlot::SimulatedSlot(World& world, Job& job, SimulatedRank& rank, std::string name)
    : world_(world), job_(job), rank_(rank), name_(std::move(name)) {
  if (name_ != kCheckpointer) return;
  rank_machine();
  coordinator();
}

RankMachine& SimulatedSlot::rank_machine() {
  if (machine_) return *machine_;
  machine_.emplace(identity_of(job_, rank_.rank(), name_), world_.options);
  return *machine_;
}

CoordinatorMachine& SimulatedSlot::coordinator() {
  if (coordinator_) return *coordinator_;
  coordinator_ = std::make_unique<CoordinatorMachine>(identity_of(job_, rank_.rank(), name_), world_.options);
  for (const auto& [peer, down] : rank_.peers_down()) coordinator_->step(down);
  return *coordinator_;
}

std::string SimulatedSlot::state() const { return to_string(machine_ ? machine_->state() : RankMachine::State::kIdle); }

bool SimulatedSlot::is_idle() const { return (!machine_ || machine_->is_idle()) && !fiber_ && hooks_.empty(); }

std::string SimulatedSlot::leftover() const {
  if (machine_ && !machine_->is_idle()) return to_string(machine_->state());
  if (coordinator_ && !coordinator_->is_idle()) return to_string(coordinator_->state());
  if (fiber_ || !hooks_.empty()) return "a hook that has not ended";
  return {};
}

void SimulatedSlot::count_coordinator(const char* how) const {
  if (!coordinator_ || coordinator_->state() == CoordinatorMachine::State::kIdle) return;
  if (rank_.calls_ended() >= job_.spec().program.size()) return;
  const std::string state = std::string(to_string(coordinator_->state())).substr(std::string("coordinator").size());
  const Operation operation = name_ != kCheckpointer ? Operation::kSave : job_.spec().program[rank_.calls_ended()].operation;
  world_.coverage.hit(std::string("coordinator lost in a ") + to_string(operation) + state);
  world_.coverage.hit("coordinator" + std::string(how[0] == '\'' ? "" : " ") + how + state);
}

void SimulatedSlot::lose_coordinator() {
  count_coordinator("'s actor died");
  coordinator_.reset();
  if (name_ == kCheckpointer) coordinator();
  ++coordinator_life_;
  for (auto timer = timers_.begin(); timer != timers_.end();)
    timer = protocol::is_of_coordinator(timer->first) ? timers_.erase(timer) : std::next(timer);
}

// --- calls ---------------------------------------------------------------------------------------

void SimulatedSlot::start(std::uint64_t number) {
  number_ = number;
  const CallSpec& spec = job_.spec().program[number - 1];
  call_began_ = world_.time.now();
  call_ = std::make_shared<RunningCall>();
  call_->checkpoint_id = "sim://" + spec.place;
  call_->rank = rank_.rank();
  call_->world_size = job_.size();
  call_->tools = spec.background && job_.spec().own_tools ? std::make_shared<Tools>() : rank_.tools();
  int layout = spec.version.layout;
  if (spec.operation == Operation::kLoad) {  // a trainer knows the layout of the checkpoint that it loads
    const auto current = world_.ledger.current(spec.place);
    if (current) layout = world_.ledger.version_of(*current).value_or(Version{}).layout;
  }
  if (spec.operation == Operation::kSave) call_->state = state_of(spec.version, rank_.rank(), job_.size());
  if (spec.operation == Operation::kLoad) call_->state = empty_state(layout, rank_.rank(), job_.size());
  if (spec.operation == Operation::kAgree) call_->checkpoint_id = "call " + std::to_string(number);
  if (spec.operation == Operation::kSave && rank_.troubles.differing.count(number) != 0) {
    world_.coverage.hit("ranks hold different values");
    call_->state["text"] = "what rank " + std::to_string(rank_.rank()) + " alone holds";
  }
  if (spec.background) {
    call_->background.emplace(*call_->tools, [this, call = call_.get()]() -> const StateDict& { return await_turn(*call); });
    holds_on_ = true;
    rank_.turns().begin(number);
    if (rank_.turns().count() > 1) world_.coverage.hit("saves are in flight together");
  }
  last_call_ = call_;
  outcomes_.clear();
  own_hook_failed_ = false;

  protocol::CallStarted call;
  call.ticket = number;
  call.ordinal = ++ordinal_;
  call.operation = spec.operation;
  call.checkpoint_id = call_->checkpoint_id;
  call.coordinator_rank = spec.coordinator;
  // The step is an option of a save. Ranks at different steps must not save together.
  if (spec.operation == Operation::kSave) call.options_digest = sha256(std::to_string(spec.version.content));
  if (spec.operation == Operation::kAgree) call.text = text_of(number, rank_.rank());
  const auto deadline = rank_.troubles.deadlines.find(number);
  if (deadline != rank_.troubles.deadlines.end()) call.deadline = deadline->second;
  rank_.trace("calls " + std::string(to_string(spec.operation)) + " of " + spec.place +
              (spec.background ? " in the background" : ""));
  rank_machine();
  ObservedEvent called = call_event(EventKind::kCall, to_string(spec.operation), name_, 0);
  called.text = call_->checkpoint_id;
  called.number = ordinal_;
  const SimulatedTrace::Because because(rank_.recording(), rank_.recording().record("runtime", called, 0));
  step_rank(call);
}

void SimulatedSlot::end_call(const protocol::Finished& finished) {
  const int teller = told_by(finished);
  const bool in_words = teller >= 0;
  rank_.trace("its call " + std::to_string(number_) + " ends: " + to_string(finished));
  judge(finished, in_words);
  const CallSpec& spec = job_.spec().program[number_ - 1];
  Report report;
  report.job = job_.index();
  report.rank = rank_.rank();
  report.ordinal = number_;
  report.operation = spec.operation;
  report.heard = in_words;
  report.undisturbed = job_.is_undisturbed();
  report.decided_by = job_.all_can_talk() ? -1 : teller;
  if (in_words && teller != spec.coordinator) world_.coverage.hit("a successor ended the call");
  if (in_words && finished.failures.count(rank_.rank()) != 0) {
    const FailureKind kind = finished.failures.at(rank_.rank()).kind;
    if (kind == FailureKind::kSilent || kind == FailureKind::kLost)
      world_.coverage.hit("a lost rank came back and heard the outcome");
  }
  report.began = call_began_;
  report.ended = world_.time.now();
  report.finished = finished;
  if (Tap* const tap = rank_.recording().supervisor())
    record_outcome(*tap, rank_.rank(), name_, machine_->counter(),
                   {finished.failures, finished.committed, finished.save_id, finished.answer});
  if (world_.witness != nullptr) world_.witness->reported(report);
  world_.ledger.reported(spec.place, report);
  call_.reset();
  rank_.call_returned(number_);
  let_go();
}

// The checkpointer considers a background call ended once no hook of it is left. Then another call
// gets its turn.
void SimulatedSlot::let_go() {
  if (call_ || !last_call_.expired() || !std::exchange(holds_on_, false)) return;
  rank_.call_let_go(number_);
}

int SimulatedSlot::told_by(const protocol::Finished& finished) const {
  for (const auto& [from, outcome] : outcomes_) {
    const protocol::Ending& ending = *outcome.ending;
    if (ungrouped(ending.failures) == finished.failures && ending.committed == finished.committed &&
        ending.save_id == finished.save_id && ending.answer == finished.answer)
      return from;
  }
  return -1;
}

// Checks that this rank may end the call with this result.
void SimulatedSlot::judge(const protocol::Finished& finished, bool in_words) const {
  const CallSpec& spec = job_.spec().program[number_ - 1];
  const std::string who = rank_.where() + ", call " + std::to_string(number_) + ": ";
  const bool undisturbed =
      rank_.disturbances() == 0 && !rank_.has_lost_link_to(spec.coordinator) && job_.rank(spec.coordinator).disturbances() == 0;
  world_.coverage.hit(in_words ? "outcome heard" : "ended alone");
  if (!in_words && undisturbed) world_.ledger.accuse(who + "ended alone for no reason: " + to_string(finished));
  const bool unwanted = std::all_of(finished.failures.begin(), finished.failures.end(), [&](const auto& entry) {
    return entry.second.kind == FailureKind::kCancelled && job_.rank(entry.first).has_cancelled(number_);
  });
  if (job_.spec().quiet && !unwanted) world_.ledger.accuse(who + "failed although nothing went wrong: " + to_string(finished));
  if (in_words && own_hook_failed_ && finished.failures.count(rank_.rank()) == 0) {
    const bool cut_short = std::any_of(finished.failures.begin(), finished.failures.end(), [](const auto& entry) {
      return entry.second.kind == FailureKind::kCancelled || entry.second.kind == FailureKind::kInternal;
    });
    if (!cut_short && !job_.rank(spec.coordinator).is_shut_down())
      world_.ledger.accuse(who + "its own failure is not in the map: " + to_string(finished));
  }
  for (const auto& [rank, failure] : finished.failures) {
    if (failure.kind != FailureKind::kCancelled || failure.actor != "trainer") continue;
    world_.coverage.hit("its callers ended a call: " + std::string(cairn::to_string(failure.code)));
    if (!job_.rank(rank).has_cancelled(finished.save_id.empty() ? 0 : number_))
      world_.ledger.accuse(who + "was told that the caller of rank " + std::to_string(rank) +
                           " had ended it: " + to_string(finished));
  }
  if (finished.failures.size() > 1 && in_words) world_.coverage.hit("several failures in one map");
  if (finished.failures.empty() && job_.differ_in(number_))
    world_.ledger.accuse(who + "succeeded although its ranks hold different values: " + to_string(finished));
  if (spec.operation == Operation::kAgree) return judge_answer(finished);
  if (finished.failures.empty() && !job_.all_moved(name_, machine_->counter()))
    world_.ledger.accuse(who + "succeeded, but not all ranks have moved their data: " + to_string(finished));
  if (const auto told = world_.ledger.version_of(finished.save_id)) {
    if (spec.operation != Operation::kSave || told->content != spec.version.content)
      world_.ledger.accuse(who + "was told how another call ended: " + to_string(finished));
  }
  if (spec.operation == Operation::kSave || !finished.failures.empty()) return;
  world_.coverage.hit("load succeeded");
  const auto version = world_.ledger.version_of(call_->metadata->save_id);
  if (!version || !holds(call_->state, *version, rank_.rank(), job_.size()))
    world_.ledger.accuse(who + "loaded other values than " + call_->metadata->save_id + " saved");
}

// Expects the answer that `run_hook` makes from the texts of all ranks for this call only.
void SimulatedSlot::judge_answer(const protocol::Finished& finished) const {
  std::string answer;
  for (int rank = 0; rank < job_.size() && finished.failures.empty(); ++rank) answer += text_of(number_, rank);
  if (finished.failures.empty()) world_.coverage.hit("agreement succeeded");
  if (finished.answer != answer)
    world_.ledger.accuse(rank_.where() + ", call " + std::to_string(number_) + ": was answered \"" + finished.answer + "\"");
}

// --- messages ------------------------------------------------------------------------------------

void SimulatedSlot::receive(const protocol::Received& received) {
  if (std::holds_alternative<protocol::AskStanding>(received.body)) rank_machine();
  if (const auto* outcome = std::get_if<protocol::Outcome>(&received.body))
    if (outcome->ticket == number_) outcomes_.emplace_back(received.from, *outcome);
  step_rank(received);
}

void SimulatedSlot::send(const protocol::Send& message) {
  if (message.to == rank_.rank()) {  // stays within the process, so it is not encoded
    protocol::Received received{rank_.rank(), message.counter, message.body};
    return world_.time.after(microseconds(100), [this, received = std::move(received), cause = rank_.recording().cause()] {
      rank_.when_awake([this, received, cause] {
        const SimulatedTrace::Because because(rank_.recording(), cause);
        rank_.receive(name_, received);
      });
    });
  }
  protocol::Envelope envelope;
  envelope.attempt = {job_.incarnation(), name_, message.counter};
  envelope.sender = rank_.rank();
  envelope.body = message.body;
  envelope.cause = rank_.recording().cause();
  if (const char* const sent = trace_name_of(message.body)) {
    ObservedEvent event = call_event(EventKind::kSent, sent, name_, message.counter);
    event.peer = message.to;
    envelope.id = rank_.recording().record("supervisor", event, envelope.cause);
  }
  world_.coverage.hit(std::string("sent ") + name_of(message.body));
  if (const auto* standing = std::get_if<protocol::Standing>(&message.body))
    world_.coverage.hit(std::string("sent Standing: ") + name_of(standing->kind));
  if (const auto* other = std::get_if<protocol::FollowOther>(&message.body); other != nullptr && other->leader == -1)
    world_.coverage.hit("an outcome that nobody keeps was asked for");
  job_.network().send(rank_.rank(), message.to, std::make_shared<const std::string>(protocol::encode(envelope)));
}

// --- machines ------------------------------------------------------------------------------------

void SimulatedSlot::step_rank(const protocol::Event& event) {
  if (!machine_) return;
  try {
    perform(machine_->step(event), false);
  } catch (const std::exception& error) {
    world_.ledger.accuse(rank_.where() + ": the rank's machine broke: " + error.what());
  }
}

void SimulatedSlot::step_coordinator(const protocol::Event& event) {
  if (std::holds_alternative<protocol::Received>(event)) coordinator();
  if (!coordinator_) return;
  try {
    const auto before = coordinator_->state();
    const bool was_idle = coordinator_->is_idle();
    auto effects = coordinator_->step(event);
    if (was_idle && std::any_of(effects.begin(), effects.end(), is_outcome)) world_.coverage.hit("an outcome was told again");
    perform(std::move(effects), true);
    if (coordinator_->state() != before) job_.on_state(rank_, coordinator_->state());
  } catch (const std::exception& error) {
    world_.ledger.accuse(rank_.where() + ": the coordinator's machine broke: " + error.what());
  }
}

void SimulatedSlot::perform(protocol::Effects effects, bool for_coordinator) {
  for (auto& effect : effects) {
    if (const auto* message = std::get_if<protocol::Send>(&effect)) {
      send(*message);
    } else if (auto* hook = std::get_if<protocol::RunHook>(&effect)) {
      if (!for_coordinator) {
        queue({std::move(*hook), 0, call_, rank_.recording().cause()});
      } else {
        world_.time.after(microseconds(50),
                          [this, hook = std::move(*hook), life = coordinator_life_, cause = rank_.recording().cause()] {
                            rank_.when_awake([this, hook, life, cause] {
                              const SimulatedTrace::Because because(rank_.recording(), cause);
                              run_for_coordinator(hook, life);
                            });
                          });
      }
    } else if (const auto* started = std::get_if<protocol::StartTimer>(&effect)) {
      start_timer(*started);
    } else if (const auto* stopped = std::get_if<protocol::StopTimer>(&effect)) {
      timers_.erase(stopped->timer);
    } else if (const auto* finished = std::get_if<protocol::Finished>(&effect)) {
      end_call(*finished);
    } else if (const auto* shown = std::get_if<protocol::ProgressTold>(&effect)) {
      show(shown->job);
    } else if (const auto* note = std::get_if<protocol::Note>(&effect)) {
      rank_.trace(note->what);
      if (Tap* const tap = for_coordinator ? rank_.recording().coordinator() : rank_.recording().supervisor())
        tap->record(call_event(EventKind::kState, note->what, name_,
                               for_coordinator ? coordinator_->counter() : machine_->counter(), note->ok));
      world_.coverage.hit((note->ok ? "became " : "ignored: ") + std::string(note->what));
    }
  }
}

// Checks that the progress shown stays within the job's bounds and belongs to a running call.
void SimulatedSlot::show(const protocol::JobProgress& job) {
  world_.coverage.hit(std::string("shown how far all ranks are in phase ") + cairn::to_string(job.phase));
  const auto world = static_cast<std::uint64_t>(job_.size());
  const bool in_bounds = job.ranks_done <= job_.size() && job.slowest_rank < job_.size() && job.moved.items <= 4 * world;
  if (!call_ || !in_bounds) world_.ledger.accuse(rank_.where() + ": was shown a progress that is none of its call's");
}

void SimulatedSlot::start_timer(const protocol::StartTimer& timer) {
  const std::uint64_t number = timers_[timer.timer] = ++last_timer_;
  world_.time.after(timer.after, [this, name = timer.timer, number] {
    rank_.when_awake([this, name, number] {
      const auto running = timers_.find(name);
      if (running == timers_.end() || running->second != number) return;
      timers_.erase(running);
      if (name == protocol::Timer::kProgress) return step_rank(protocol::ProgressDue{{4, 2, 4096, 1024}});
      rank_.trace("a deadline passes");
      if (name == protocol::Timer::kWaiting)
        world_.coverage.hit("whom the coordinator waits for is told");
      else
        world_.coverage.hit(protocol::is_of_coordinator(name) ? "coordinator's deadline" : "rank's deadline");
      const char* const actor = protocol::is_of_coordinator(name) ? "coordinator" : "supervisor";
      const SimulatedTrace::Because because(
          rank_.recording(), rank_.recording().record(actor, call_event(EventKind::kState, trace_name_of(name), name_, 0), 0));
      if (protocol::is_of_coordinator(name))
        step_coordinator(protocol::TimerFired{name});
      else
        step_rank(protocol::TimerFired{name});
      rank_.stop_if_idle();
    });
  });
}

// Decides as the supervisor does: the call that owns the objects of a coordinator's hook may have
// ended.
void SimulatedSlot::run_for_coordinator(const protocol::RunHook& hook, std::uint64_t life) {
  if (life != coordinator_life_) return;
  const bool is_of_call = hook.hook == protocol::Hook::kDecide || (machine_ && machine_->counter() == hook.counter);
  const bool runs = call_ && is_of_call && machine_->state() != RankMachine::State::kEnding;
  if (runs) return queue({hook, life, call_, rank_.recording().cause()});
  Failure failure;
  failure.rank = rank_.rank();
  failure.phase = hook.phase;
  failure.kind = FailureKind::kCancelled;
  failure.code = ErrorCode::kCancelled;
  failure.what = "the call of this rank has ended";
  failure.actor = "supervisor";
  step_coordinator(protocol::HookDone{hook.sequence, failure});
}

}  // namespace cairn::simulation
