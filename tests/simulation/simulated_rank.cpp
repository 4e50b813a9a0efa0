#include <cairn/tests/support/torch.hpp>
// torch first
#include <algorithm>
#include <cerrno>

#include <caf/send.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/tests/simulation/simulated_rank.hpp>
#include <cairn/tests/simulation/world.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Background calls take the names of these checkpointers in rotation, so that some calls reuse a
// name.
constexpr std::uint64_t kNamesInBackground = 3;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::size_t at(int index) { return static_cast<std::size_t>(index); }

const char* name_of(protocol::RankStatus kind) {
  switch (kind) {
    case protocol::RankStatus::kAbsent:
      return "absent";
    case protocol::RankStatus::kEnded:
      return "ended";
    case protocol::RankStatus::kAttached:
      return "attached";
    case protocol::RankStatus::kPromised:
      return "promised";
    case protocol::RankStatus::kOrphaned:
      return "orphaned";
  }
  return "?";
}

}  // namespace

SimulatedRank::SimulatedRank(World& world, Job& job, int rank)
    : world_(world),
      job_(job),
      rank_(rank),
      clock_(world.time, rank),
      watch_(world.coverage),
      trace_(std::make_shared<SimulatedTrace>(static_cast<Observer&>(*this), clock_, world.recordings,
                                              trace_header(job.incarnation(), rank, job.size(), TraceSource::kStream))),
      actors_(std::make_shared<SimulatedActors>()),
      client_(world.files, *this),
      calls_max_(job.spec().program.size()) {
  if (at(rank) < job.spec().ranks.size()) troubles = job.spec().ranks[at(rank)];
}

SimulatedRank::~SimulatedRank() {
  alive_ = false;
  trace_->close();
  client_.cut_off();
  bury();
}

void SimulatedRank::start() {
  RankConfig config;
  config.rank = rank_;
  config.world_size = job_.size();
  config.incarnation = job_.incarnation();
  config.options = world_.options;
  config.observer = trace_;
  config.clock = &clock_;
  when_awake([&] {
    runtime_ = std::make_unique<RankRuntime>(actors_, std::move(config),
                                             std::make_shared<SimulatedLinks>(static_cast<SimulatedLinks::Host&>(*this)));
    supervisor_ = actors_->new_supervisor();
    next_call();
  });
}

std::string SimulatedRank::where() const { return "job " + std::to_string(job_.index()) + ", rank " + std::to_string(rank_); }

void SimulatedRank::trace(const std::string& text) const { world_.trace(where(), text); }

RankState SimulatedRank::state() const { return watch_.state_of_rank(checkpointer_key(kCheckpointer)); }

std::string SimulatedRank::leftover() const {
  for (const auto& call : all_calls_)
    if (call->runs()) return "call " + std::to_string(call->number());
  if (const std::string busy = watch_.busy_state(); !busy.empty()) return busy;
  if (client_.open_handles() != 0) return "an open file";
  return {};
}

bool SimulatedRank::has_cancelled(std::uint64_t call) const {
  if (call == 0) return !cancelled_.empty() || !troubles.deadlines.empty();
  return cancelled_.count(call) != 0 || troubles.deadlines.count(call) != 0;
}

SimulatedCall* SimulatedRank::running_call(std::uint64_t number) const {
  for (const auto& call : all_calls_)
    if (call->number() == number && call->runs()) return call.get();
  return nullptr;
}

// --- the process ---------------------------------------------------------------------------------

void SimulatedRank::when_awake(std::function<void()> act) {
  if (!alive_) return;
  if (frozen_) {
    backlog_.push_back(std::move(act));
    return;
  }
  actors_->set_time(world_.time.now());
  act();
  schedule_actors();
}

void SimulatedRank::schedule_actors() {
  if (!alive_ || frozen_) return;
  if (actors_->has_work() && !turn_is_due_) {
    turn_is_due_ = true;
    const Duration delay = world_.dice.chance(90) ? world_.dice.between(microseconds(1), microseconds(20))
                                                  : world_.dice.between(microseconds(20), microseconds(300));
    world_.time.after(delay, [this] {
      turn_is_due_ = false;
      if (!frozen_) when_awake([this] { run_an_actor(); });
    });
  }
  const auto due = actors_->next_due();
  if (!due || (wakes_at_ && *wakes_at_ <= *due)) return;
  wakes_at_ = due;
  world_.time.after(*due - world_.time.now(), [this, at = *due] {
    if (wakes_at_ == at) wakes_at_.reset();
    if (!frozen_) when_awake([] {});
  });
}

void SimulatedRank::run_an_actor() {
  if (actors_->has_work()) {
    actors_->run_one(world_.dice);
    job_.on_message(*this, ++messages_);
  }
  bool calls_run = false;
  for (const auto& call : all_calls_) {
    call->look_at_progress();
    calls_run = calls_run || call->runs();
  }
  if (!calls_run && stopped_.valid() && stopped_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) end_process();
}

void SimulatedRank::end_process() {
  alive_ = false;
  trace_->close();
  client_.abandon(nullptr);
  job_.network().remove(rank_, false);
  world_.time.after(Duration(0), [this] { bury(); });
}

void SimulatedRank::bury() {
  for (auto& call : all_calls_) call->drain();
  runtime_.reset();
  supervisor_ = SupervisorActor();
  links_ = nullptr;
  if (actors_) actors_->run_all();
  actors_.reset();
}

// --- faults --------------------------------------------------------------------------------------

void SimulatedRank::kill(bool machine) {
  if (!alive_) return;
  trace(machine ? "killed with its machine" : "killed");
  for (const auto& [checkpointer, state] : watch_.ranks()) world_.coverage.hit(std::string("killed as rank: ") + to_string(state));
  count_coordinators(" killed");
  ++disturbances_;
  absences_.push_back({world_.time.now(), Duration::max()});
  alive_ = false;
  trace_->close();
  backlog_.clear();
  if (machine) {
    static constexpr Survival::Kind kKinds[] = {Survival::kSynced, Survival::kEverything, Survival::kRandom};
    const Survival survival{kKinds[world_.dice.below(3)], world_.dice.next()};
    if (client_.open_handles() != 0 && survival.kind != Survival::kEverything) world_.coverage.hit("unsynced data lost");
    client_.abandon(&survival);
  } else {
    client_.abandon(nullptr);
  }
  job_.network().remove(rank_, machine);
  world_.time.after(Duration(0), [this] { bury(); });
}

// Counts in the coverage the states in which coordinators were lost; `how` says by which fault.
void SimulatedRank::count_coordinators(const std::string& how) const {
  if (calls_ended() >= job_.spec().program.size()) return;
  for (const auto& [checkpointer, its_state] : watch_.coordinators()) {
    if (its_state == CoordinatorState::kIdle) continue;
    const std::string state = std::string(": ") + to_string(its_state);
    const bool is_in_front = checkpointer == checkpointer_key(kCheckpointer);
    const auto operation = is_in_front ? job_.spec().program[calls_ended()].operation : protocol::Operation::kSave;
    world_.coverage.hit(std::string("coordinator lost in a ") + to_string(operation) + state);
    world_.coverage.hit("coordinator" + how + state);
  }
}

void SimulatedRank::freeze(Duration length) {
  if (!alive_) return;
  trace("frozen for " + std::to_string(std::chrono::duration_cast<milliseconds>(length).count()) + " ms");
  for (const auto& [checkpointer, state] : watch_.ranks()) world_.coverage.hit(std::string("frozen as rank: ") + to_string(state));
  count_coordinators(" frozen");
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
  when_awake([] {});
  for (auto& act : backlog) when_awake(std::move(act));
}

void SimulatedRank::shut_down() {
  when_awake([this] {
    if (stopping_) return;
    trace("shut down");
    world_.coverage.hit("shut down");
    ++disturbances_;
    absences_.push_back({world_.time.now(), Duration::max()});
    stopping_ = true;
    auto sent = std::make_shared<std::promise<void>>();
    stopped_ = sent->get_future();
    // As RankRuntime::shutdown does, which then blocks its thread.
    caf::anon_send(supervisor_, Traced<Stop>{Stop{std::move(sent)}});
  });
}

void SimulatedRank::actor_dies(const std::string& actor) {
  when_awake([this, actor] {
    trace("its " + actor + " actor dies");
    world_.coverage.hit(actor + " actor died");
    ++disturbances_;
    const bool is_supervisor = actor == "supervisor";
    if (is_supervisor)
      caf::anon_send_exit(supervisor_, caf::exit_reason::kill);
    else if (actor == "links")
      caf::anon_send_exit(links_, caf::exit_reason::kill);
    else
      actors_->kill_child(supervisor_, actor);
    if (is_supervisor) absences_.push_back({world_.time.now(), world_.time.now()});
    if (actor != "coordinator" && !is_supervisor) return;
    count_coordinators("'s actor died");
    if (!is_supervisor) watch_.coordinator_dies();
    coordinator_deaths_.push_back(world_.time.now());
  });
}

void SimulatedRank::stop_calling() {
  ++disturbances_;
  trace("makes no further call");
  calls_max_ = calls_;
  look_for_the_end();
}

void SimulatedRank::cancel_call(bool oldest) {
  when_awake([this, oldest] {
    const SimulatedCall* chosen = nullptr;
    for (const auto& call : all_calls_)
      if (call->runs() && !(oldest && chosen != nullptr)) chosen = call.get();
    if (chosen == nullptr) return;
    const std::uint64_t number = chosen->number();
    trace("its caller cancels call " + std::to_string(number));
    world_.coverage.hit(std::string("cancelled as rank: ") +
                        to_string(watch_.state_of_rank(checkpointer_key(chosen->checkpointer()))));
    if (turns_.is_in_flight(number))
      world_.coverage.hit(turns_.has_come(number) ? "cancelled in flight, in its turn" : "cancelled in flight, before its turn");
    cancel(number, "it has changed its mind");
  });
}

// Cancels like the handle of an asynchronous save.
void SimulatedRank::cancel(std::uint64_t number, const std::string& why) {
  cancelled_.insert(number);
  if (const auto* const call = running_call(number)) runtime_->cancel(call->checkpointer(), call->ticket(), why);
  turns_.drop(number);
  for (auto& call : all_calls_) call->look_at_turn();
}

// --- the trainer ---------------------------------------------------------------------------------

void SimulatedRank::next_call() {
  if (calls_ >= calls_max_) return look_for_the_end();
  world_.time.after(world_.dice.between(Duration(0), milliseconds(20)), [this] { when_awake([this] { start_call(); }); });
}

void SimulatedRank::look_for_the_end() {
  if (calls_ >= calls_max_ && calling_ == 0 && !turns_.any()) done_ = true;
}

void SimulatedRank::start_call() {
  if (stopping_) return;
  if (calls_ >= calls_max_) return look_for_the_end();
  if (job_.spec().lockstep && !job_.have_ended(calls_))  // trainers synchronize gradients between calls
    return world_.time.after(milliseconds(50), [this] { when_awake([this] { start_call(); }); });
  const CallSpec& spec = job_.spec().program[calls_];
  if (prepared_.empty()) prepare_call(spec);
  if (!awaited_.empty()) return;  // start_call runs again when the last of them has ended
  calling_ = ++calls_;
  const std::string checkpointer = std::exchange(prepared_, "");
  all_calls_.push_back(std::make_unique<SimulatedCall>(world_, job_, *this, calls_, checkpointer, ++ordinals_[checkpointer]));
  if (spec.background) {
    turns_.begin(calls_);
    if (turns_.count() > 1) world_.coverage.hit("saves are in flight together");
  }
  watch_.call_begins(checkpointer_key(checkpointer));
  try {
    all_calls_.back()->start(*runtime_);
  } catch (const Error& error) {
    world_.ledger.accuse(where() + ", call " + std::to_string(calls_) + " is refused: " + error.what());
  }
}

// As in the checkpointer: all ranks use the same names, but each rank decides alone which
// saves it replaces.
void SimulatedRank::prepare_call(const CallSpec& spec) {
  prepared_ = kCheckpointer;
  if (spec.background) prepared_ += "~" + std::to_string(names_taken_++ % kNamesInBackground);
  for (std::uint64_t call = 1; spec.replaces && call <= calls_; ++call) {
    if (!turns_.is_in_flight(call)) continue;
    if (!turns_.hold(call)) {
      spared_.insert(call);
      continue;
    }
    trace("replaces call " + std::to_string(call));
    world_.coverage.hit("replaced before its turn");
    replaced_.insert(call);
    cancel(call, "another is saved in its place");
  }
  for (std::uint64_t call = 1; call <= calls_; ++call) {
    if (!turns_.is_in_flight(call)) continue;
    const bool in_the_way = !spec.background || replaced_.count(call) != 0 || all_calls_[call - 1]->checkpointer() == prepared_;
    if (in_the_way) awaited_.insert(call);
  }
}

bool SimulatedRank::another_has_turn(std::uint64_t call) const {
  for (std::uint64_t other = 1; other <= calls_; ++other)
    if (other != call && turns_.is_in_flight(other) && turns_.was_taken(other)) return true;
  return false;
}

void SimulatedRank::call_returned(std::uint64_t call) {
  if (calling_ != call) return;
  calling_ = 0;
  next_call();
}

void SimulatedRank::save_ended(std::uint64_t number) {
  turns_.end(number);
  for (auto& call : all_calls_) call->look_at_turn();
  if (awaited_.erase(number) != 0 && awaited_.empty())
    world_.time.after(Duration(0), [this] { when_awake([this] { start_call(); }); });
  look_for_the_end();
}

// --- other ranks ---------------------------------------------------------------------------------

void SimulatedRank::link_up(int peer) {
  when_awake([this, peer] { caf::anon_send(supervisor_, LinkUp{peer}); });
}

void SimulatedRank::link_down(const LinkDown& down) {
  when_awake([this, down] {
    trace("lost rank " + std::to_string(down.rank) + ": " + down.why);
    ++links_lost_[down.rank];
    caf::anon_send(supervisor_, down);
  });
}

void SimulatedRank::link_message(int peer, const std::shared_ptr<const std::string>& bytes) {
  when_awake([this, peer, bytes] {
    const protocol::Envelope envelope = protocol::decode(*bytes);
    if (const auto* outcome = std::get_if<protocol::Outcome>(&envelope.body)) {
      for (auto& call : all_calls_)
        if (call->runs() && call->ticket() == outcome->ticket) call->told(peer, *outcome);
    } else if (const auto* status = std::get_if<protocol::StatusReply>(&envelope.body)) {
      world_.coverage.hit(std::string("received StatusReply: ") + name_of(status->kind));
    } else if (const auto* other = std::get_if<protocol::FollowOther>(&envelope.body); other != nullptr && other->leader == -1) {
      world_.coverage.hit("an outcome that nobody keeps was asked for");
    }
    caf::anon_send(supervisor_, LinkMessage{peer, bytes});
  });
}

void SimulatedRank::receive(std::uint64_t number) {
  when_awake([this, number] {
    if (auto* const call = running_call(number)) call->receive();
  });
}

void SimulatedRank::send_to(int peer, const SharedBytes& bytes) {
  if (alive_) job_.network().send(rank_, peer, bytes);
}

void SimulatedRank::open_link_to(int peer) {
  if (alive_) job_.network().open_link(rank_, peer);
}

void SimulatedRank::links_begin(const caf::actor& links, const SupervisorActor& supervisor) {
  links_ = links;
  if (supervisor_ == supervisor) return;
  supervisor_ = supervisor;
  job_.network().end_links(rank_, "its supervisor died");
  watch_.supervisor_dies();
  world_.time.after(milliseconds(1), [this] { watch_.supervisor_dies(); });  // a child may have handled one more message
}

void SimulatedRank::links_end(bool leaves, const std::string& why) {
  if (!alive_) return;
  if (!leaves) return job_.network().end_links(rank_, why);
  if (!stopping_) world_.ledger.accuse(where() + ": its supervisor has left the world");
  job_.network().remove(rank_, false);
}

void SimulatedRank::on_event(const ObservedEvent& event) noexcept {
  if (world_.tracing)
    trace(std::string(to_string(event.actor)) + " " + verb_of(event.kind) + " " + name_of(event) +
          (event.peer >= 0 ? " of rank " + std::to_string(event.peer) : "") + (event.text.empty() ? "" : ": ") +
          std::string(event.text) + (event.ok ? "" : ", not ok"));
  world_.record(event);
  const auto state = watch_.take(event);
  if (state) job_.on_state(*this, *state);
  if (event.kind == EventKind::kOperation && event.ok && (event.name == "write_data" || event.name == "read_data"))
    job_.moved(event.checkpointer, event.attempt, rank_);
  if (event.as<Restarted>() != nullptr && !coordinator_deaths_.empty()) coordinator_deaths_.push_back(world_.time.now());
}

// --- hooks ---------------------------------------------------------------------------------------

void SimulatedRank::resume(TrainerThread& thread, Fiber& fiber) {
  FileSystem* const disk = std::exchange(world_.disk, &client_);
  SimulatedRank* const running = std::exchange(world_.running, this);
  TrainerThread* const running_thread = std::exchange(running_, &thread);
  fiber.resume();
  running_ = running_thread;
  world_.running = running;
  world_.disk = disk;
}

void SimulatedRank::pause(Duration length) {
  if (!alive_ || Fiber::current() == nullptr) return;
  world_.time.after(length, [this, thread = running_] { when_awake([thread] { thread->resume(); }); });
  Fiber::suspend();
}

// --- the disk ------------------------------------------------------------------------------------

Verdict SimulatedRank::before_operation(const char* operation, const std::string& path) {
  if (Fiber::current() == nullptr) return {};
  job_.on_operation(*this);
  pause(world_.dice.between(microseconds(20), microseconds(600)));
  if (!alive_) return {};
  static constexpr int kErrors[] = {EIO, ENOSPC, EACCES, ESTALE, EDQUOT};
  if (troubles.disk_slow > 0 && world_.dice.chance(troubles.disk_slow)) {
    world_.coverage.hit("disk was slow");
    ++disturbances_;
    pause(world_.dice.between(milliseconds(100), world_.options.phase_deadline * 3 / 2));
  }
  Verdict verdict;
  if (troubles.disk_fails > 0 && world_.dice.chance(troubles.disk_fails)) {
    verdict = {kErrors[world_.dice.below(5)], false};
    world_.coverage.hit("disk failed");
  } else if (troubles.disk_lies > 0 && world_.dice.chance(troubles.disk_lies)) {
    verdict = {EIO, true};
    world_.coverage.hit("disk lost an answer");
  }
  if (verdict.error != 0) trace(std::string(operation) + " " + path + " fails");
  return verdict;
}

void SimulatedRank::after_operation(const char* operation, const std::string& path) {
  trace(std::string(operation) + (path.empty() ? "" : " " + path));
  const std::string record = std::string("/") + kCommitRecordName;
  const std::string name = operation;
  if (name == "rename" && path.find("/.fenced-") != std::string::npos) world_.coverage.hit("an attempt was fenced");
  if (!ends_with(path, record)) return;
  if (name != "rename" && name != "link") return;
  FileSystem* const disk = std::exchange(world_.disk, nullptr);
  world_.ledger.published(path.substr(0, path.size() - record.size()));
  world_.disk = disk;
}

}  // namespace cairn::simulation
