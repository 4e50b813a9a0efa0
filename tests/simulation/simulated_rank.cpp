#include <cairn/tests/simulation/simulated_rank.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <cairn/actors/call_events.hpp>
#include <cairn/actors/local_messages.hpp>
#include <cairn/messages/codec.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Background calls take these slots in rotation, so that some calls reuse a slot.
constexpr std::uint64_t kSlotsInBackground = 3;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

SimulatedRank::SimulatedRank(World& world, Job& job, int rank)
    : world_(world),
      job_(job),
      rank_(rank),
      recording_(world.time, world.recordings, job.incarnation(), rank, job.size()),
      client_(world.files, *this),
      calls_max_(job.spec().program.size()) {
  if (at(rank) < job.spec().ranks.size()) troubles = job.spec().ranks[at(rank)];
  slot(kCheckpointer);
}

SimulatedRank::~SimulatedRank() {
  alive_ = false;
  recording_.close();
  client_.cut_off();
  for (auto& [name, slot] : slots_) slot->drain();
}

std::string SimulatedRank::where() const { return "job " + std::to_string(job_.index()) + ", rank " + std::to_string(rank_); }

void SimulatedRank::trace(const std::string& text) const { world_.trace(where(), text); }

std::string SimulatedRank::leftover() const {
  for (const auto& [name, slot] : slots_) {
    const std::string left = slot->leftover();
    if (!left.empty()) return left;
  }
  if (client_.open_handles() != 0) return "an open file";
  return {};
}

bool SimulatedRank::has_cancelled(std::uint64_t call) const {
  if (call == 0) return !cancelled_.empty() || !troubles.deadlines.empty();
  return cancelled_.count(call) != 0 || troubles.deadlines.count(call) != 0;
}

SimulatedSlot& SimulatedRank::slot(const std::string& name) {
  auto& known = slots_[name];
  if (!known) known = std::make_unique<SimulatedSlot>(world_, job_, *this, name);
  return *known;
}

SimulatedSlot* SimulatedRank::slot_of(std::uint64_t call) {
  for (const auto& [name, slot] : slots_)
    if (slot->runs(call)) return slot.get();
  return nullptr;
}

// --- faults --------------------------------------------------------------------------------------

void SimulatedRank::kill(bool machine) {
  if (!alive_) return;
  trace(machine ? "killed with its machine" : "killed");
  for (const auto& [name, slot] : slots_) {
    world_.coverage.hit("killed as " + slot->state());
    slot->count_coordinator("killed");
  }
  ++disturbances_;
  absences_.push_back({world_.time.now(), Duration::max()});
  alive_ = false;
  recording_.close();
  backlog_.clear();
  for (auto& [name, slot] : slots_) slot->forget_hooks();
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
    for (auto& [name, slot] : slots_) slot->drain();
  });
}

void SimulatedRank::freeze(Duration length) {
  if (!alive_) return;
  trace("frozen for " + std::to_string(std::chrono::duration_cast<milliseconds>(length).count()) + " ms");
  for (const auto& [name, slot] : slots_) {
    world_.coverage.hit("frozen as " + slot->state());
    slot->count_coordinator("frozen");
  }
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
    for (auto& [name, slot] : slots_) slot->step_coordinator(protocol::Cancelled{"shut down"});
    for (auto& [name, slot] : slots_)
      if (!slot->is_coordinated_by(rank_)) slot->step_rank(protocol::Cancelled{"shut down"});
    stop_if_idle();
  });
}

void SimulatedRank::stop_if_idle() {
  if (!stopping_ || !alive_) return;
  for (const auto& [name, slot] : slots_)
    if (!slot->is_idle()) return;
  alive_ = false;
  recording_.close();
  client_.abandon(nullptr);
  job_.network().remove(rank_, false);
}

void SimulatedRank::actor_dies(const std::string& actor) {
  when_awake([this, actor] {
    trace("its " + actor + " actor dies");
    world_.coverage.hit(actor + " actor died");
    ++disturbances_;
    if (actor != "coordinator") {
      for (auto& [name, slot] : slots_) slot->step_rank(protocol::ActorDied{actor, "a test"});
      return;
    }
    down_.clear();
    for (auto& [name, slot] : slots_) slot->lose_coordinator();
    coordinator_deaths_.push_back(world_.time.now());
    protocol::CoordinatorDown down;
    down.failure.rank = rank_;
    down.failure.kind = FailureKind::kInternal;
    down.failure.what = "the coordinator actor died";
    down.failure.actor = "supervisor";
    for (int rank = 0; rank < job_.size(); ++rank) slot(kCheckpointer).send({rank, 0, down});
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
    std::uint64_t chosen = 0;
    for (std::uint64_t call = 1; call <= calls_; ++call)
      if (slot_of(call) != nullptr && !(oldest && chosen != 0)) chosen = call;
    if (chosen == 0) return;
    trace("its caller cancels call " + std::to_string(chosen));
    world_.coverage.hit("cancelled as " + slot_of(chosen)->state());
    if (turns_.is_in_flight(chosen))
      world_.coverage.hit(turns_.has_come(chosen) ? "cancelled in flight, in its turn" : "cancelled in flight, before its turn");
    cancel(chosen, "it has changed its mind");
  });
}

// Cancels like the handle of an asynchronous save.
void SimulatedRank::cancel(std::uint64_t call, const std::string& why) {
  cancelled_.insert(call);
  if (auto* const slot = slot_of(call)) slot->step_rank(protocol::CancelRequested{call, why});
  turns_.drop(call);
  for (auto& [name, slot] : slots_) slot->look_at_turn();
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
  if (spec.background) in_background_.emplace(calls_, prepared_);
  slot(std::exchange(prepared_, "")).start(calling_);
}

// As in the checkpointer: all ranks use the same slot names, but each rank decides alone which
// saves it replaces.
void SimulatedRank::prepare_call(const CallSpec& spec) {
  prepared_ = kCheckpointer;
  if (spec.background) prepared_ += "~" + std::to_string(slots_taken_++ % kSlotsInBackground);
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
    const bool in_the_way = !spec.background || replaced_.count(call) != 0 || in_background_.at(call) == prepared_;
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

void SimulatedRank::call_let_go(std::uint64_t call) {
  turns_.end(call);
  for (auto& [name, slot] : slots_) slot->look_at_turn();
  if (awaited_.erase(call) != 0 && awaited_.empty())
    world_.time.after(Duration(0), [this] { when_awake([this] { start_call(); }); });
  look_for_the_end();
}

// --- other ranks ---------------------------------------------------------------------------------

void SimulatedRank::link_up(int peer) {
  when_awake([this, peer] {
    down_.erase(peer);
    const SimulatedTrace::Because because(recording_, record_link("LinkUp", peer, true, ""));
    for (auto& [name, slot] : slots_) slot->step_coordinator(protocol::PeerUp{peer});
    for (auto& [name, slot] : slots_) slot->step_rank(protocol::PeerUp{peer});
  });
}

void SimulatedRank::link_down(const protocol::PeerDown& down) {
  when_awake([this, down] {
    trace("lost rank " + std::to_string(down.rank) + ": " + down.why);
    ++links_lost_[down.rank];
    const SimulatedTrace::Because because(recording_, record_link("LinkDown", down.rank, false, down.why));
    if (!down.reachable) down_.insert_or_assign(down.rank, down);
    for (auto& [name, slot] : slots_) slot->step_coordinator(down);
    for (auto& [name, slot] : slots_) slot->step_rank(down);
    stop_if_idle();
  });
}

void SimulatedRank::link_message(int peer, const std::shared_ptr<const std::string>& bytes) {
  when_awake([this, peer, bytes] {
    const protocol::Envelope envelope = protocol::decode(*bytes);
    std::uint64_t handled = 0;
    if (const char* const name = trace_name_of(envelope.body)) {
      ObservedEvent event = call_event(EventKind::kHandled, name, envelope.attempt.checkpointer, envelope.attempt.counter);
      event.peer = peer;
      event.bytes = bytes->size();
      handled = recording_.record("supervisor", event, envelope.id);
    }
    const SimulatedTrace::Because because(recording_, handled);
    receive(envelope.attempt.checkpointer, {peer, envelope.attempt.counter, envelope.body});
  });
}

std::uint64_t SimulatedRank::record_link(const char* what, int peer, bool ok, const std::string& why) {
  ObservedEvent event;
  event.kind = EventKind::kHandled;
  event.name = what;
  event.peer = peer;
  event.text = why;
  event.ok = ok;
  return recording_.record("supervisor", event, 0);
}

void SimulatedRank::receive(const std::string& name, const protocol::Received& received) {
  trace("has " + std::string(name_of(received.body)) + " of rank " + std::to_string(received.from));
  if (protocol::is_for_coordinator(received.body)) {
    down_.erase(received.from);
    return slot(name).step_coordinator(received);
  }
  if (std::holds_alternative<protocol::AskStanding>(received.body)) slot(name);  // a rank answers even before it has made a call
  const auto* const down = std::get_if<protocol::CoordinatorDown>(&received.body);
  const bool of_every_call = down && down->ticket == 0;
  for (auto& [other, slot] : slots_)
    if (of_every_call || other == name) slot->receive(received);
  stop_if_idle();
}

// --- hooks ---------------------------------------------------------------------------------------

void SimulatedRank::resume(SimulatedSlot& slot, Fiber& fiber) {
  FileSystem* const disk = std::exchange(world_.disk, &client_);
  SimulatedRank* const running = std::exchange(world_.running, this);
  SimulatedSlot* const running_slot = std::exchange(running_, &slot);
  fiber.resume();
  running_ = running_slot;
  world_.running = running;
  world_.disk = disk;
}

void SimulatedRank::pause(Duration length) {
  if (!alive_ || Fiber::current() == nullptr) return;
  world_.time.after(length, [this, slot = running_] { when_awake([slot] { slot->resume_hook(); }); });
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
