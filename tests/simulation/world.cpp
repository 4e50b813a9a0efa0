#include <cairn/tests/simulation/world.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/url.hpp>
#include <cairn/tests/simulation/order.hpp>
#include <cairn/tests/simulation/scenario.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// Files that Cairn did not create, in a directory that it saves to.
const std::set<std::string> kForeignFiles = {"notes.txt", "__0_0.distcp", "weights/model.bin"};

World*& current_world() {
  static World* world = nullptr;
  return world;
}

// Opens "sim:///a/b": directory /a/b on the disk of the running world, as the running rank sees it.
void register_scheme() {
  static const bool once = [] {
    register_store("sim", [](const std::string& url) -> std::shared_ptr<Store> {
      World& world = *current_world();
      return std::make_shared<FileStore>(split_url(url).path, world.disk != nullptr ? *world.disk : world.files);
    });
    return true;
  }();
  (void)once;
}

RuntimeOptions deadlines() {
  RuntimeOptions options;
  options.join_deadline = seconds(20);
  options.phase_deadline = seconds(20);
  options.outcome_grace = seconds(2);
  options.cancel_grace = seconds(2);
  options.connect_deadline = seconds(2);
  options.heartbeat_timeout = seconds(1);
  options.trace_ring_bytes = 4096;                            // nothing reads it
  options.trace_store_operations = std::chrono::hours(1000);  // they would be measured in real time
  return options;
}

// A job must end within this time: a call takes at most the sum of its phase deadlines, and every
// fault ends.
Duration bound_of(const JobSpec& spec) {
  Duration bound = minutes(10) + minutes(5) * static_cast<int>(spec.program.size());
  for (const Trouble& trouble : spec.troubles) bound += trouble.length;
  return bound;
}

void put_file(testing::SimulatedFileSystem& files, const std::string& path) {
  const std::string content = "not Cairn's";
  const int file = files.create_exclusively(path);
  files.write_at(file, content.data(), content.size(), 0);
  files.close(file);
}

}  // namespace

const char* to_string(Trouble::What what) {
  static constexpr const char* kNames[] = {
      "a process is killed",     "a machine goes down",    "a process is frozen",  "a connection is reset",    "a link is cut",
      "the network is parted",   "a planner actor dies",   "a storage actor dies", "a coordinator actor dies", "a links actor dies",
      "a supervisor actor dies", "a runtime is shut down", "all lose power",       "a trainer stops calling",  "a caller cancels"};
  return kNames[static_cast<int>(what)];
}

// --- one job -------------------------------------------------------------------------------------

Job::Job(World& world, int index, JobSpec spec) : world_(world), index_(index), spec_(std::move(spec)) {
  const auto incarnations = seeded_random(world.dice.next());
  incarnation_ = random_hex(*incarnations, 128);
  std::vector<Network::End*> ends;
  for (int rank = 0; rank < spec_.size; ++rank) {
    ranks_.push_back(std::make_unique<SimulatedRank>(world, *this, rank));
    ends.push_back(ranks_.back().get());
  }
  network_ = std::make_unique<Network>(world.time, world.dice, world.coverage, world.options, std::move(ends));
  begun_.assign(spec_.troubles.size(), false);
}

void Job::start() {
  for (auto& rank : ranks_) rank->start();
  for (std::size_t i = 0; i < spec_.troubles.size(); ++i) {
    if (spec_.troubles[i].when != Trouble::When::kTime) continue;
    world_.time.after(spec_.troubles[i].time, [this, i] { befall(spec_.troubles[i], nullptr); });
  }
}

bool Job::ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& rank) { return rank->ended() || (spec_.zombies && rank->frozen()); });
}

bool Job::is_undisturbed() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->is_undisturbed(); });
}

bool Job::all_can_talk() const {
  using What = Trouble::What;
  const bool cut = std::any_of(spec_.troubles.begin(), spec_.troubles.end(), [](const Trouble& trouble) {
    return trouble.what == What::kFreeze || trouble.what == What::kReset || trouble.what == What::kBlock ||
           trouble.what == What::kPartition;
  });
  const bool slow = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    const auto& hooks = rank->troubles.hooks;
    return rank->troubles.disk_slow > 0 ||
           std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) { return hook.second == HookFault::kSlow; });
  });
  return !cut && !slow;
}

bool Job::all_moved(RankWatch::Checkpointer checkpointer, std::uint64_t attempt) const {
  const auto found = moved_.find({checkpointer, attempt});
  return found != moved_.end() && found->second.size() == ranks_.size();
}

bool Job::differ_in(std::uint64_t call) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank->troubles.differing.count(call) != 0; });
}

bool Job::have_ended(std::uint64_t calls) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& rank) { return rank->ended() || rank->frozen() || rank->calls_ended() >= calls; });
}

void Job::finish() {
  check_agreement(*this, world_.ledger);
  check_order(*this, world_.ledger, world_.coverage);
  for (auto& rank : ranks_) {
    if (!rank->alive()) continue;
    if (spec_.zombies && rank->frozen()) {
      world_.coverage.hit("zombie");
      continue;
    }
    const std::string left = rank->leftover();
    if (!spec_.zombies && !rank->frozen() && !left.empty())
      world_.ledger.accuse(rank->where() + " has ended, but there is left: " + left);
    rank->kill(false);
  }
}

void Job::on_operation(SimulatedRank& rank) {
  const std::uint64_t number = operations_++;
  for (std::size_t i = 0; i < spec_.troubles.size(); ++i) {
    const Trouble& trouble = spec_.troubles[i];
    if (trouble.when != Trouble::When::kOperation || trouble.operation != number || begun_[i]) continue;
    begun_[i] = true;
    befall(trouble, &rank);
  }
}

void Job::on_state(SimulatedRank& rank, protocol::CoordinatorMachine::State state) {
  const std::uint64_t number = states_[state]++;
  if (world_.witness != nullptr) world_.witness->entered(world_.time, rank.rank(), state);
  for (std::size_t i = 0; i < spec_.troubles.size(); ++i) {
    const Trouble& trouble = spec_.troubles[i];
    if (trouble.when != Trouble::When::kState || trouble.state != state || trouble.occurrence != number || begun_[i]) continue;
    begun_[i] = true;
    world_.time.after(trouble.time, [this, i, &rank] { befall(spec_.troubles[i], &rank); });
  }
}

void Job::on_message(SimulatedRank& rank, std::uint64_t number) {
  for (std::size_t i = 0; i < spec_.troubles.size(); ++i) {
    const Trouble& trouble = spec_.troubles[i];
    if (trouble.when == Trouble::When::kMessage && trouble.rank == rank.rank() && trouble.operation == number)
      befall(trouble, &rank);
  }
}

void Job::befall(const Trouble& trouble, SimulatedRank* by) {
  SimulatedRank& rank =
      trouble.rank < 0 ? (by != nullptr ? *by : *ranks_.front()) : *ranks_[static_cast<std::size_t>(trouble.rank)];
  if (ended()) return;
  world_.trace("world", to_string(trouble.what));
  if (world_.witness != nullptr) world_.witness->befell(world_.time, rank.state());
  world_.coverage.hit(to_string(trouble.what));
  const int peer = trouble.peer == rank.rank() ? (trouble.peer + 1) % spec_.size : trouble.peer;
  switch (trouble.what) {
    case Trouble::What::kKillProcess:
      return rank.kill(false);
    case Trouble::What::kKillMachine:
      return rank.kill(true);
    case Trouble::What::kFreeze:
      return rank.freeze(trouble.length);
    case Trouble::What::kReset:
      if (peer != rank.rank()) network_->reset(rank.rank(), peer);
      return;
    case Trouble::What::kBlock:
      if (peer != rank.rank()) network_->block(rank.rank(), peer, trouble.length);
      return;
    case Trouble::What::kPartition:
      // Ranks on different sides differ in bit `peer % 3` of the rank number.
      for (int a = 0; a < spec_.size; ++a)
        for (int b = a + 1; b < spec_.size; ++b)
          if (((a >> (trouble.peer % 3)) & 1) != ((b >> (trouble.peer % 3)) & 1)) network_->block(a, b, trouble.length);
      return;
    case Trouble::What::kPlannerDies:
      return rank.actor_dies("planner");
    case Trouble::What::kStorageDies:
      return rank.actor_dies("storage");
    case Trouble::What::kCoordinatorDies:
      return rank.actor_dies("coordinator");
    case Trouble::What::kLinksDie:
      return rank.actor_dies("links");
    case Trouble::What::kSupervisorDies:
      return rank.actor_dies("supervisor");
    case Trouble::What::kShutDown:
      return rank.shut_down();
    case Trouble::What::kPowerLoss:
      return world_.lose_power(trouble.survival);
    case Trouble::What::kStopsCalling:
      return rank.stop_calling();
    case Trouble::What::kCancels:
      return rank.cancel_call(trouble.oldest);
  }
}

// --- the world -----------------------------------------------------------------------------------

World::World(std::uint64_t seed, Coverage& covered)
    : dice(seed),
      late_dice(~seed),
      caller_dice(seed ^ 0x5ca1ab1e),
      background_dice(seed ^ 0xb0a7f10a7),
      agreement_dice(seed ^ 0xa9eedf0a11),
      shell_dice(seed ^ 0x5e11),
      coverage(covered),
      ledger(files, covered),
      options(deadlines()) {
  register_scheme();
  files.features.exclusive_rename = !dice.chance(20);
  files.features.replaces_directories = !dice.chance(20);
  if (dice.chance(25)) files.features.write_bytes_max = 700;
  files.held_after_lookup = [this] {
    SimulatedRank* const rank = running;
    if (rank == nullptr || Fiber::current() == nullptr) return true;
    if (dice.chance(20)) rank->pause(dice.between(std::chrono::microseconds(10), milliseconds(2)));
    return rank->alive();
  };
}

World::~World() {
  jobs_.clear();
  current_world() = nullptr;
}

void World::trace(const std::string& who, const std::string& what) const {
  if (!tracing) return;
  const auto time_us = std::chrono::duration_cast<std::chrono::microseconds>(time.now()).count();
  std::printf("%12.6f  %-16s %s\n", static_cast<double>(time_us) / 1e6, who.c_str(), what.c_str());
}

void World::record(const ObservedEvent& event) {
  const auto mix = [this](std::size_t value) { digest_ = (digest_ ^ value) * 0x100000001b3; };
  mix(std::hash<std::string>()(name_of(event)));
  mix(std::hash<std::string_view>()(event.text));
  mix(static_cast<std::size_t>(event.time.time_since_epoch().count()));
  mix(static_cast<std::size_t>(event.rank));
  mix(static_cast<std::size_t>(event.cause));
}

void World::run(JobSpec spec) {
  current_world() = this;
  const Duration bound = time.now() + bound_of(spec);
  jobs_.push_back(std::make_unique<Job>(*this, static_cast<int>(jobs_.size()), std::move(spec)));
  Job& job = *jobs_.back();
  trace("world", "job " + std::to_string(job.index()) + " of " + std::to_string(job.size()) + " ranks starts");
  job.start();
  while (!job.ended()) {
    if (time.now() > bound || !time.advance()) {
      std::string who;
      for (int rank = 0; rank < job.size(); ++rank)
        if (!job.rank(rank).ended()) who += " " + std::to_string(rank) + " (" + job.rank(rank).leftover() + ")";
      ledger.accuse("job " + std::to_string(job.index()) + " does not end; waiting:" + who);
      break;
    }
  }
  // Delivers the messages still in flight, and lets the remaining deadlines pass.
  if (!job.spec().zombies) {
    const Duration quiet = time.now() + 2 * options.join_deadline + 2 * options.phase_deadline;
    bool passed = false;
    time.after(quiet - time.now(), [&] { passed = true; });
    while (!passed && time.advance()) {
    }
  }
  job.finish();
}

void World::lose_power(const std::optional<Survival>& survival) {
  for (auto& job : jobs_)
    for (int rank = 0; rank < job->size(); ++rank) job->rank(rank).kill(false);
  static constexpr Survival::Kind kKinds[] = {Survival::kSynced, Survival::kEverything, Survival::kRandom, Survival::kAny};
  files.restart(survival ? *survival : Survival{kKinds[dice.below(4)], dice.next()});
  // The rank whose hook is running is dead, so the ledger must not read through its disk client.
  FileSystem* const reader = std::exchange(disk, nullptr);
  ledger.power_lost();
  disk = reader;
}

void World::run_seed() {
  const int troubled = 1 + (dice.chance(40) ? 1 : 0);
  bool zombies = false;
  for (int i = 0; i < troubled; ++i) {
    if (i > 0) coverage.hit("a job after a job");
    JobSpec spec = troubled_job(dice, last_content);
    plan_rare_troubles(late_dice, spec);
    plan_cancellations(caller_dice, spec);
    plan_background_saves(background_dice, spec, last_content);
    plan_agreements(agreement_dice, spec);
    plan_unsendable_text(shell_dice, spec);
    if (zombies) spec.quiet = false;  // zombies may disturb this job
    zombies = spec.zombies;
    run(std::move(spec));
  }
  check_end(1 + dice.below(4));
}

void World::check_end(int size) {
  // Ends all zombies.
  for (auto& job : jobs_)
    for (int rank = 0; rank < job->size(); ++rank) job->rank(rank).kill(false);
  while (time.advance()) {
  }
  ledger.check_newest();
  std::set<std::string> places = ledger.places();
  if (places.empty()) places.insert(CallSpec{}.place);
  for (const std::string& place : places) {
    FileStore(place, files).create_root();
    files.make_directory(place + "/weights");
    for (const auto& name : kForeignFiles) put_file(files, place + "/" + name);
  }
  run(quiet_job(dice, last_content, size, ledger));
  ledger.check_newest();
  for (const std::string& place : ledger.places()) ledger.check_clean(place, kForeignFiles);
  if (files.open_handles() != 0) ledger.accuse("handles are left open");
}

}  // namespace cairn::simulation
