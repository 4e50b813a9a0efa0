#include <cairn/tests/simulation/simulated_rank.hpp>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

using protocol::CoordinatorMachine;
using protocol::Operation;
using protocol::RankMachine;
using std::chrono::microseconds;
using std::chrono::milliseconds;

const std::string kCheckpointer = "main";

protocol::Identity identity_of(const Job& job, int rank) { return {rank, job.size(), job.incarnation(), kCheckpointer}; }

std::size_t at(int index) { return static_cast<std::size_t>(index); }

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

bool is_outcome(const protocol::Effect& effect) {
  const auto* message = std::get_if<protocol::Send>(&effect);
  return message != nullptr && std::holds_alternative<protocol::Outcome>(message->body);
}

}  // namespace

SimulatedRank::SimulatedRank(World& world, Job& job, int rank)
    : world_(world),
      job_(job),
      rank_(rank),
      machine_(identity_of(job, rank), world.options),
      coordinator_(std::make_unique<CoordinatorMachine>(identity_of(job, rank), world.options)),
      client_(world.files, *this),
      calls_max_(job.spec().program.size()) {
  if (at(rank) < job.spec().ranks.size()) troubles = job.spec().ranks[at(rank)];
}

SimulatedRank::~SimulatedRank() {
  alive_ = false;
  client_.cut_off();
  while (fiber_) resume_hook();
}

std::string SimulatedRank::where() const { return "job " + std::to_string(job_.index()) + ", rank " + std::to_string(rank_); }

void SimulatedRank::trace(const std::string& text) const { world_.trace(where(), text); }

std::string SimulatedRank::leftover() const {
  if (!machine_.is_idle()) return to_string(machine_.state());
  if (!coordinator_->is_idle()) return to_string(coordinator_->state());
  if (fiber_ || !hooks_.empty()) return "a hook that has not ended";
  if (client_.open_handles() != 0) return "an open file";
  return {};
}

// That something befalls it in the middle of what it coordinates.
void SimulatedRank::count_coordinator(const char* how) {
  if (coordinator_->state() == CoordinatorMachine::State::kIdle || calls_ended() >= job_.spec().program.size()) return;
  const std::string state = std::string(to_string(coordinator_->state())).substr(std::string("coordinator").size());
  const bool save = job_.spec().program[calls_ended()].operation == Operation::kSave;
  world_.coverage.hit(std::string("coordinator lost in a ") + (save ? "save" : "load") + state);
  world_.coverage.hit("coordinator" + std::string(how[0] == '\'' ? "" : " ") + how + state);
}

// --- what may befall it -------------------------------------------------------------------------------------------------------

void SimulatedRank::kill(bool machine) {
  if (!alive_) return;
  trace(machine ? "killed with its machine" : "killed");
  world_.coverage.hit(std::string("killed as ") + to_string(machine_.state()));
  count_coordinator("killed");
  ++disturbances_;
  absences_.push_back({world_.time.now(), Duration::max()});
  alive_ = false;
  backlog_.clear();
  hooks_.clear();
  if (machine) {
    static constexpr Survival::Kind kKinds[] = {Survival::kSynced, Survival::kEverything, Survival::kRandom};
    const Survival survival{kKinds[world_.dice.below(3)], world_.dice.next()};
    if (client_.open_handles() != 0 && survival.kind != Survival::kEverything) world_.coverage.hit("unsynced data lost");
    client_.abandon(&survival);
  } else {
    client_.abandon(nullptr);
  }
  job_.network().remove(rank_, machine);
  world_.time.after(Duration(0), [this] {
    while (fiber_) resume_hook();
  });
}

void SimulatedRank::freeze(Duration length) {
  if (!alive_) return;
  trace("frozen for " + std::to_string(std::chrono::duration_cast<milliseconds>(length).count()) + " ms");
  world_.coverage.hit(std::string("frozen as ") + to_string(machine_.state()));
  count_coordinator("frozen");
  ++disturbances_;
  thaw_at_ = std::max(thaw_at_, world_.time.now() + length);
  absences_.push_back({world_.time.now(), thaw_at_});
  if (!frozen_) {
    frozen_ = true;
    job_.network().freeze(rank_);
  }
  world_.time.after(length, [this] { thaw(); });
}

void SimulatedRank::thaw() {
  if (!alive_ || !frozen_ || world_.time.now() < thaw_at_) return;
  trace("thawed");
  world_.coverage.hit("thawed");
  frozen_ = false;
  ++disturbances_;
  job_.network().thaw(rank_);
  auto backlog = std::move(backlog_);
  backlog_.clear();
  for (auto& act : backlog) when_awake(std::move(act));
}

void SimulatedRank::when_awake(std::function<void()> act) {
  if (!alive_) return;
  if (frozen_)
    backlog_.push_back(std::move(act));
  else
    act();
}

void SimulatedRank::shut_down() {
  when_awake([this] {
    if (stopping_) return;
    trace("shut down");
    world_.coverage.hit("shut down");
    ++disturbances_;
    absences_.push_back({world_.time.now(), Duration::max()});
    stopping_ = true;
    step_coordinator(protocol::Cancelled{"shut down"});
    if (machine_.coordinator_rank() != rank_) step_rank(protocol::Cancelled{"shut down"});
    stop_if_idle();
  });
}

void SimulatedRank::stop_if_idle() {
  if (!stopping_ || !alive_ || !machine_.is_idle() || fiber_ || !hooks_.empty()) return;
  alive_ = false;
  client_.abandon(nullptr);
  job_.network().remove(rank_, false);
}

void SimulatedRank::actor_dies(const std::string& actor) {
  when_awake([this, actor] {
    trace("its " + actor + " actor dies");
    world_.coverage.hit(actor + " actor died");
    ++disturbances_;
    if (actor != "coordinator") return step_rank(protocol::ActorDied{actor, "a test"});
    count_coordinator("'s actor died");
    coordinator_ = std::make_unique<CoordinatorMachine>(identity_of(job_, rank_), world_.options);
    ++coordinator_life_;
    coordinator_deaths_.push_back(world_.time.now());
    for (auto timer = timers_.begin(); timer != timers_.end();)
      timer = protocol::is_of_coordinator(timer->first) ? timers_.erase(timer) : std::next(timer);
    protocol::CoordinatorDown down;
    down.failure.rank = rank_;
    down.failure.kind = FailureKind::kInternal;
    down.failure.what = "the coordinator actor died";
    down.failure.actor = "supervisor";
    for (int rank = 0; rank < job_.size(); ++rank) send({rank, 0, down});
  });
}

void SimulatedRank::stop_calling() {
  ++disturbances_;
  trace("makes no further call");
  calls_max_ = calls_;
  if (machine_.is_idle()) done_ = true;
}

void SimulatedRank::cancel_call() {
  when_awake([this] {
    if (!call_) return;
    trace("its caller cancels");
    world_.coverage.hit(std::string("cancelled as ") + to_string(machine_.state()));
    cancelled_ = true;
    step_rank(protocol::CancelRequested{calls_, "it has changed its mind"});
  });
}

// --- the trainer --------------------------------------------------------------------------------------------------------------

void SimulatedRank::next_call() {
  if (calls_ >= calls_max_) {
    done_ = true;
    return;
  }
  world_.time.after(world_.dice.between(Duration(0), milliseconds(20)), [this] { when_awake([this] { start_call(); }); });
}

void SimulatedRank::start_call() {
  if (stopping_) return;
  if (calls_ >= calls_max_) {
    done_ = true;
    return;
  }
  if (job_.spec().lockstep && !job_.have_ended(calls_))  // the trainers meet in between, for their gradients
    return world_.time.after(milliseconds(50), [this] { when_awake([this] { start_call(); }); });
  const CallSpec& spec = job_.spec().program[calls_];
  ++calls_;
  call_began_ = world_.time.now();
  call_ = std::make_shared<RunningCall>();
  call_->checkpoint_id = "sim://" + spec.place;
  call_->rank = rank_;
  call_->world_size = job_.size();
  call_->tools = tools_;
  int layout = spec.version.layout;
  if (spec.operation == Operation::kLoad) {  // trainers know what they load
    const auto current = world_.ledger.current(spec.place);
    if (current) layout = world_.ledger.version_of(*current).value_or(Version{}).layout;
  }
  call_->state =
      spec.operation == Operation::kSave ? state_of(spec.version, rank_, job_.size()) : empty_state(layout, rank_, job_.size());
  if (spec.operation == Operation::kSave && troubles.differing.count(calls_) != 0) {
    world_.coverage.hit("ranks hold different values");
    call_->state["text"] = "what rank " + std::to_string(rank_) + " alone holds";
  }
  outcomes_.clear();
  own_hook_failed_ = false;

  protocol::CallStarted call;
  call.ticket = call.ordinal = calls_;
  call.operation = spec.operation;
  call.checkpoint_id = call_->checkpoint_id;
  call.coordinator_rank = spec.coordinator;
  // The step is an option of a save: ranks that are not at the same one must not be taken together.
  if (spec.operation == Operation::kSave) call.options_digest = sha256(std::to_string(spec.version.content));
  const auto deadline = troubles.deadlines.find(calls_);
  if (deadline != troubles.deadlines.end()) call.deadline = deadline->second;
  trace("calls " + std::string(to_string(spec.operation)) + " of " + spec.place);
  step_rank(call);
}

void SimulatedRank::end_call(const protocol::Finished& finished) {
  const int teller = told_by(finished);
  const bool in_words = teller >= 0;
  trace("its call ends: " + to_string(finished));
  judge(finished, in_words);
  const CallSpec& spec = job_.spec().program[calls_ - 1];
  Report report;
  report.job = job_.index();
  report.rank = rank_;
  report.ordinal = calls_;
  report.operation = spec.operation;
  report.heard = in_words;
  report.undisturbed = job_.is_undisturbed();
  report.decided_by = job_.all_can_talk() ? -1 : teller;
  if (in_words && teller != spec.coordinator) world_.coverage.hit("a successor ended the call");
  if (in_words && finished.failures.count(rank_) != 0) {
    const FailureKind kind = finished.failures.at(rank_).kind;
    if (kind == FailureKind::kSilent || kind == FailureKind::kLost)
      world_.coverage.hit("a lost rank came back and heard the outcome");
  }
  report.began = call_began_;
  report.ended = world_.time.now();
  report.finished = finished;
  world_.ledger.reported(spec.place, report);
  call_.reset();
  next_call();
}

int SimulatedRank::told_by(const protocol::Finished& finished) const {
  for (const auto& [from, outcome] : outcomes_)
    if (outcome.failures == finished.failures && outcome.committed == finished.committed && outcome.save_id == finished.save_id)
      return from;
  return -1;
}

// Whether the call's end is one that this rank may come to.
void SimulatedRank::judge(const protocol::Finished& finished, bool in_words) {
  const CallSpec& spec = job_.spec().program[calls_ - 1];
  const std::string who = where() + ", call " + std::to_string(calls_) + ": ";
  const bool undisturbed =
      disturbances_ == 0 && links_lost_.count(spec.coordinator) == 0 && job_.rank(spec.coordinator).disturbances() == 0;
  world_.coverage.hit(in_words ? "outcome heard" : "ended alone");
  if (!in_words && undisturbed) world_.ledger.accuse(who + "ended alone for no reason: " + to_string(finished));
  if (job_.spec().quiet && !finished.failures.empty())
    world_.ledger.accuse(who + "failed although nothing went wrong: " + to_string(finished));
  if (in_words && own_hook_failed_ && finished.failures.count(rank_) == 0) {
    const bool cut_short = std::any_of(finished.failures.begin(), finished.failures.end(), [](const auto& entry) {
      return entry.second.kind == FailureKind::kCancelled || entry.second.kind == FailureKind::kInternal;
    });
    if (!cut_short && !job_.rank(spec.coordinator).is_shut_down())
      world_.ledger.accuse(who + "its own failure is not in the map: " + to_string(finished));
  }
  for (const auto& [rank, failure] : finished.failures) {
    if (failure.kind != FailureKind::kCancelled || failure.actor != "trainer") continue;
    world_.coverage.hit("its callers ended a call: " + std::string(cairn::to_string(failure.code)));
    if (!job_.rank(rank).has_cancelled())
      world_.ledger.accuse(who + "was told that the caller of rank " + std::to_string(rank) +
                           " had ended it: " + to_string(finished));
  }
  if (finished.failures.size() > 1 && in_words) world_.coverage.hit("several failures in one map");
  if (finished.failures.empty() && job_.differ_in(calls_))
    world_.ledger.accuse(who + "succeeded although its ranks hold different values: " + to_string(finished));
  if (finished.failures.empty() && !job_.all_moved(machine_.counter()))
    world_.ledger.accuse(who + "succeeded, but not all ranks have moved their data: " + to_string(finished));
  if (const auto told = world_.ledger.version_of(finished.save_id)) {
    if (spec.operation != Operation::kSave || told->content != spec.version.content)
      world_.ledger.accuse(who + "was told how another call ended: " + to_string(finished));
  }
  if (spec.operation == Operation::kSave || !finished.failures.empty()) return;
  world_.coverage.hit("load succeeded");
  const auto version = world_.ledger.version_of(call_->metadata->save_id);
  if (!version || !holds(call_->state, *version, rank_, job_.size()))
    world_.ledger.accuse(who + "loaded other values than " + call_->metadata->save_id + " saved");
}

// --- other ranks --------------------------------------------------------------------------------------------------------------

void SimulatedRank::link_up(int peer) {
  when_awake([this, peer] {
    step_coordinator(protocol::PeerUp{peer});
    step_rank(protocol::PeerUp{peer});
  });
}

void SimulatedRank::link_down(const protocol::PeerDown& down) {
  when_awake([this, down] {
    trace("lost rank " + std::to_string(down.rank) + ": " + down.why);
    ++links_lost_[down.rank];
    step_coordinator(down);
    step_rank(down);
    stop_if_idle();
  });
}

void SimulatedRank::link_message(int peer, const std::shared_ptr<const std::string>& bytes) {
  when_awake([this, peer, bytes] {
    const protocol::Envelope envelope = protocol::decode(*bytes);
    receive({peer, envelope.attempt.counter, envelope.body});
  });
}

void SimulatedRank::receive(const protocol::Received& received) {
  trace("has " + std::string(name_of(received.body)) + " of rank " + std::to_string(received.from));
  if (protocol::is_for_coordinator(received.body)) return step_coordinator(received);
  if (const auto* outcome = std::get_if<protocol::Outcome>(&received.body))
    if (outcome->ticket == calls_) outcomes_.emplace_back(received.from, *outcome);
  step_rank(received);
  stop_if_idle();
}

void SimulatedRank::send(const protocol::Send& message) {
  if (message.to == rank_) {  // stays within the process, and is not encoded
    protocol::Received received{rank_, message.counter, message.body};
    return world_.time.after(microseconds(100),
                             [this, received = std::move(received)] { when_awake([this, received] { receive(received); }); });
  }
  protocol::Envelope envelope;
  envelope.attempt = {job_.incarnation(), kCheckpointer, message.counter};
  envelope.sender = rank_;
  envelope.body = message.body;
  world_.coverage.hit(std::string("sent ") + name_of(message.body));
  if (const auto* standing = std::get_if<protocol::Standing>(&message.body))
    world_.coverage.hit(std::string("sent Standing: ") + name_of(standing->kind));
  if (const auto* other = std::get_if<protocol::FollowOther>(&message.body); other != nullptr && other->leader == -1)
    world_.coverage.hit("an outcome that nobody keeps was asked for");
  job_.network().send(rank_, message.to, std::make_shared<const std::string>(protocol::encode(envelope)));
}

// --- machines -----------------------------------------------------------------------------------------------------------------

void SimulatedRank::step_rank(const protocol::Event& event) {
  try {
    perform(machine_.step(event), false);
  } catch (const std::exception& error) {
    world_.ledger.accuse(where() + ": the rank's machine broke: " + error.what());
  }
}

void SimulatedRank::step_coordinator(const protocol::Event& event) {
  try {
    const auto before = coordinator_->state();
    const bool was_idle = coordinator_->is_idle();
    auto effects = coordinator_->step(event);
    if (was_idle && std::any_of(effects.begin(), effects.end(), is_outcome)) world_.coverage.hit("an outcome was told again");
    perform(std::move(effects), true);
    if (coordinator_->state() != before) job_.on_state(*this, coordinator_->state());
  } catch (const std::exception& error) {
    world_.ledger.accuse(where() + ": the coordinator's machine broke: " + error.what());
  }
}

void SimulatedRank::perform(protocol::Effects effects, bool for_coordinator) {
  for (auto& effect : effects) {
    if (const auto* message = std::get_if<protocol::Send>(&effect)) {
      send(*message);
    } else if (auto* hook = std::get_if<protocol::RunHook>(&effect)) {
      if (!for_coordinator) {
        queue({std::move(*hook), 0, call_});
      } else {
        world_.time.after(microseconds(50), [this, hook = std::move(*hook), life = coordinator_life_] {
          when_awake([this, hook, life] { run_for_coordinator(hook, life); });
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
      trace(note->what);
      world_.coverage.hit((note->ok ? "became " : "ignored: ") + std::string(note->what));
    }
  }
}

// Nobody sees more than there is, nor the call of another.
void SimulatedRank::show(const protocol::JobProgress& job) {
  world_.coverage.hit(std::string("shown how far all ranks are in phase ") + cairn::to_string(job.phase));
  const auto world = static_cast<std::uint64_t>(job_.size());
  const bool in_bounds = job.ranks_done <= job_.size() && job.slowest_rank < job_.size() && job.moved.items <= 4 * world;
  if (!call_ || !in_bounds) world_.ledger.accuse(where() + ": was shown a progress that is none of its call's");
}

void SimulatedRank::start_timer(const protocol::StartTimer& timer) {
  const std::uint64_t number = timers_[timer.timer] = ++last_timer_;
  world_.time.after(timer.after, [this, name = timer.timer, number] {
    when_awake([this, name, number] {
      const auto running = timers_.find(name);
      if (running == timers_.end() || running->second != number) return;
      timers_.erase(running);
      if (name == protocol::Timer::kProgress) return step_rank(protocol::ProgressDue{{4, 2, 4096, 1024}});
      trace("a deadline passes");
      world_.coverage.hit(protocol::is_of_coordinator(name) ? "coordinator's deadline" : "rank's deadline");
      if (protocol::is_of_coordinator(name))
        step_coordinator(protocol::TimerFired{name});
      else
        step_rank(protocol::TimerFired{name});
      stop_if_idle();
    });
  });
}

// As the supervisor decides: the call whose objects a coordinator's hook needs may have ended.
void SimulatedRank::run_for_coordinator(const protocol::RunHook& hook, std::uint64_t life) {
  if (life != coordinator_life_) return;
  const bool runs = call_ && machine_.counter() == hook.counter && machine_.state() != RankMachine::State::kEnding;
  if (runs) return queue({hook, life, call_});
  Failure failure;
  failure.rank = rank_;
  failure.phase = hook.phase;
  failure.kind = FailureKind::kCancelled;
  failure.code = ErrorCode::kCancelled;
  failure.what = "the call of this rank has ended";
  failure.actor = "supervisor";
  step_coordinator(protocol::HookDone{hook.sequence, failure});
}

}  // namespace cairn::simulation
