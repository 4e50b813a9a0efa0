// The ranks of the tests in this folder. They save and load, run into injected faults, and write
// down the outcomes. cairn-launch starts them; faults_test.py checks the results.
//
// Usage: cairn_fault_ranks MODE ARGUMENT..., with the modes:
//
//   attempt DIRECTORY save|load COORDINATOR VICTIM  a save, then for load a load, then the call
//                                                   that CAIRN_INJECT applies to. The fault
//                                                   may end VICTIM (-1: no rank).
//   freeze DIRECTORY save|load COORDINATOR RULE...  one call per rule. A stopped rank is resumed
//                                                   afterwards.
//   rejoin DIRECTORY COORDINATOR                    like attempt save; then the survivors save and
//                                                   load without the lost rank.
//   save DIRECTORY GENERATION GATE                  one save that starts to write and then blocks.
//   cancel DIRECTORY RANK                           two saves. RANK's trainer cancels the second.
//   check DIRECTORY...                              loads each checkpoint, prints its generation.
//   leave DIRECTORY COORDINATOR VICTIM HOW          VICTIM ends before any call. HOW: killed, or
//                                                   exit code 0 or 1. The others save with a
//                                                   job's default options.
//   hang DIRECTORY VICTIM                           two saves; VICTIM's hook in the second waits
//                                                   in a named function until a deadline passes.
//   heedless DIRECTORY                              saves without allowing injection.
//   late DIRECTORY call|copy RANK TIME              two saves. In the second, RANK calls TIME late,
//                                                   or its asynchronous copy takes TIME longer.
//   own DIRECTORY save|load VICTIM                  with use_collectives off: saves twice, or loads
//                                                   and prints the generation. CAIRN_INJECT
//                                                   applies to VICTIM only.
//   manage DIRECTORY                                three saves of a manager that keeps one.
//   copy DIRECTORY                                  two saves to DIRECTORY/near, copied to
//                                                   DIRECTORY/far. CAIRN_INJECT applies to the
//                                                   second copy.
//   resume DIRECTORY                                continues the copies, prints what was lost.
//
// The checkpoint is DIRECTORY/checkpoint. The files beside it are pid.RANK, report.RANK, and the
// files that ranks wait for.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <cairn/base/injection.hpp>
#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/testing/injection.hpp>
#include <cairn/runtime/testing/injection_names.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/tiers.hpp>
#include <cairn/tests/faults/board.hpp>
#include <cairn/tests/support/sample_state.hpp>

using namespace cairn;
using namespace cairn::testing;

extern "C" __attribute__((noinline)) void wait_in_the_user_hook(const Board* board, const std::string* gate) {
  board->await(*gate);
  asm volatile("");  // so that the call above is no tail call
}

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Returns short deadlines where a test waits for them to pass, and long ones that only a hang
// reaches.
WorldOptions world_options() {
  WorldOptions options;
  if (const char* const silence = std::getenv("CAIRN_TEST_SILENCE_MS"))
    options.runtime.heartbeat_timeout = milliseconds(std::atoi(silence));
  const char* const connect = std::getenv("CAIRN_TEST_CONNECT_MS");
  options.runtime.connect_deadline = connect != nullptr ? milliseconds(std::atoi(connect)) : seconds(2);
  options.runtime.join_deadline = seconds(30);
  options.runtime.phase_deadline = seconds(30);
  options.runtime.outcome_grace = seconds(5);
  options.runtime.cancel_grace = seconds(5);
  options.assemble_deadline = seconds(60);
  return options;
}

StateDict state_of(int generation, int rank, int world_size) {
  const double start = 10'000.0 * generation;
  return {{"generation", generation},
          {"sharded", ShardedTensor::distribute(counting({20, 20}, start), over_all_ranks(world_size), rank)},
          {"replicated", counting({10, 10}, start + 1000)},
          {"bytes", c10::IValue(c10::List<std::int64_t>({1, 2, 3, 4}))}};
}

// Returns the generation of `state`. Throws kCorrupt unless all of it belongs to one generation.
int generation_of(const StateDict& state, int rank, int world_size) {
  const int generation = static_cast<int>(state.at("generation").to_int());
  if (!same_values(state, state_of(generation, rank, world_size)))
    throw Error(ErrorCode::kCorrupt, "what was loaded is not generation " + std::to_string(generation));
  return generation;
}

LoadOptions load_options() {
  LoadOptions options;
  if (std::getenv("CAIRN_TEST_READ_ONCE") != nullptr) options.read_once = ReadOnce::kWorld;
  return options;
}

int load_generation(Checkpointer& checkpointer, const std::string& id, const LoadOptions& options = load_options()) {
  const int rank = checkpointer.world().rank();
  const int size = checkpointer.world().size();
  StateDict state = state_of(0, rank, size);
  checkpointer.load(state, id, options);
  return generation_of(state, rank, size);
}

// Returns the outcome of a call as text. Ranks with the same outcome get the same text.
std::string told(const std::function<void()>& call) {
  std::ostringstream text;
  try {
    call();
    text << "ok\n";
  } catch (const CheckpointException& exception) {
    text << "failed\ncommitted " << to_string(exception.committed()) << "\nsave_id " << exception.save_id() << "\n";
    for (const auto& [rank, failure] : exception.failures())
      text << "rank " << rank << " " << failure.rank << " " << to_string(failure.kind) << " " << to_string(failure.phase) << " "
           << to_string(failure.code) << " by " << failure.actor << " at " << failure.trace_position << " " << failure.type << ": "
           << failure.what << "\n";
  }
  return text.str();
}

struct Member {
  Member(World of, const std::string& directory, int coordinator)
      : world(std::move(of)), board(directory), id(directory + "/checkpoint"), checkpointer(world) {
    saving.coordinator_rank = coordinator;
    loading = load_options();
    loading.coordinator_rank = coordinator;
    board.post("pid." + std::to_string(world.rank()), std::to_string(::getpid()));
  }
  void save(int generation) { checkpointer.save(state_of(generation, world.rank(), world.size()), id, saving); }
  int load() { return load_generation(checkpointer, id, loading); }
  void report(const std::string& name, const std::string& text) const {
    board.post(name + "." + std::to_string(world.rank()), text);
  }

  World world;
  Board board;
  const std::string id;
  Checkpointer checkpointer;
  SaveOptions saving;
  LoadOptions loading;
};

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kPrecondition, "this does not hold: " + what);
}

std::vector<int> all_but(int rank, int size) {
  std::vector<int> ranks;
  for (int other = 0; other < size; ++other)
    if (other != rank) ranks.push_back(other);
  return ranks;
}

// --- attempt -------------------------------------------------------------------------------------

void attempt(const std::string& directory, bool saves, int coordinator, int victim) {
  Member self(World::from_environment(world_options()), directory, coordinator);
  self.save(1);
  if (!saves) require(self.load() == 1, "the load before the fault");
  self.report("report", told([&] {
                if (saves)
                  self.save(2);
                else
                  self.load();
              }));
  // A rank takes its outcome along when it exits. Ranks that have lost the coordinator may still
  // need to ask for that outcome, so no rank exits before all have reported.
  self.board.await_all("report", all_but(victim, self.world.size()));
}

// --- freeze --------------------------------------------------------------------------------------

// Waits until the process has stopped. A SIGCONT sent earlier would have no effect, and the process
// would stay stopped.
void await_stopped(const std::string& pid) {
  while (true) {
    std::ifstream file("/proc/" + pid + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto state = text.rfind(')');
    require(state != std::string::npos && state + 2 < text.size(), "process " + pid + " is there");
    if (text[state + 2] == 'T') return;
    ::sched_yield();
  }
}

// The lowest rank that was not stopped resumes the stopped one, after all others have reported the
// outcome of the call.
void freeze(const std::string& directory, bool saves, int coordinator, const std::vector<std::string>& rules) {
  Member self(World::from_environment(world_options()), directory, coordinator);
  const int rank = self.world.rank();
  require(active_injector() != nullptr, "CAIRN_INJECT is set, so that there is an injector to give rules to");
  int generation = 1;
  self.save(generation);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto parsed = parse_injection(rules[i], injection_names());
    require(parsed.size() == 1 && parsed[0].rank, "one rule with a rank: " + rules[i]);
    const int frozen = *parsed[0].rank;
    const auto others = all_but(frozen, self.world.size());
    const std::string name = "case_" + std::to_string(i);
    active_injector()->replace(parsed);
    self.report(name, told([&] {
                  if (saves)
                    self.save(generation + 1);
                  else
                    self.load();
                }));
    if (rank != frozen) self.board.await_all(name, others);
    if (rank == others.front()) {
      const std::string pid = self.board.read("pid." + std::to_string(frozen));
      await_stopped(pid);
      ::kill(std::stoi(pid), SIGCONT);
      self.board.post(name + ".thawed");
    }
    // The rule must stay in place until the stopped rank resumes, even if that rank's own call
    // ended before it stopped.
    self.board.await(name + ".thawed");
    self.board.await_all(name, {frozen});
    active_injector()->replace({});

    // The resumed rank takes part again: all ranks save and load successfully.
    generation += 2;
    self.save(generation);
    require(self.load() == generation, "the load after " + rules[i]);
  }
}

// --- rejoin --------------------------------------------------------------------------------------

void rejoin(const std::string& directory, int coordinator) {
  Member self(World::from_environment(world_options()), directory, coordinator);
  self.save(1);
  FailureMap failures;
  try {
    self.save(2);
  } catch (const CheckpointException& exception) {
    failures = exception.failures();
  }
  require(!failures.empty(), "the second save failed");
  const auto survivors = self.world.survivors(failures);
  std::vector<std::string> stopped;
  for (const auto& [rank, failure] : failures)
    if (failure.kind == FailureKind::kSilent) stopped.push_back(self.board.read("pid." + std::to_string(rank)));
  const World smaller = self.world.rejoin(survivors);
  require(smaller.size() == self.world.size() - 1, "the new world is smaller by one");
  require(smaller.incarnation() != self.world.incarnation(), "the new world has an incarnation of its own");

  Member after(smaller, directory, 0);
  require(after.load() == 1, "the load in the smaller world");
  after.save(3);
  require(after.load() == 3, "the load of what the smaller world saved");
  after.report("report", "survived as rank " + std::to_string(smaller.rank()) + " of " + std::to_string(smaller.size()) + "\n");
  // No test resumes the stopped processes, so rank 0 kills them.
  if (smaller.rank() != 0) return;
  after.board.await_all("report", all_but(smaller.size(), smaller.size()));
  for (const auto& pid : stopped) ::kill(std::stoi(pid), SIGKILL);
}

// --- save, cancel --------------------------------------------------------------------------------

// Starts the write, posts `here`, and blocks until `gate` is posted.
class GatedWriter : public CheckpointWriter {
 public:
  GatedWriter(const Board& board, std::string here, std::string gate)
      : board_(board), here_(std::move(here)), gate_(std::move(gate)) {}
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    auto results = CheckpointWriter::write_data(plan, planner);
    results.get();  // the data is written
    board_.post(here_);
    board_.await(gate_);
    return results;
  }

 private:
  const Board& board_;
  const std::string here_;
  const std::string gate_;
};

void save(const std::string& directory, int generation, const std::string& gate) {
  Member self(World::from_environment(world_options()), directory, 0);
  const std::string job = std::to_string(generation) + "." + std::to_string(self.world.rank());
  self.board.post("pid." + job, std::to_string(::getpid()));
  self.saving.storage_writer = std::make_shared<GatedWriter>(self.board, "written." + job, gate);
  self.report("report." + std::to_string(generation), told([&] { self.save(generation); }));
}

void cancel(const std::string& directory, int rank) {
  Member self(World::from_environment(world_options()), directory, 0);
  self.save(1);
  const Cancellation cancellation;
  if (self.world.rank() == rank) cancellation.cancel("the operator has had enough");
  self.saving.cancellation = cancellation;
  self.report("report", told([&] { self.save(2); }));
  self.board.await_all("report", all_but(-1, self.world.size()));
}

// --- late, manage --------------------------------------------------------------------------------

// Copies as slowly as a device would that is busy.
class SlowStager : public DefaultStager {
 public:
  explicit SlowStager(milliseconds longer) : longer_(longer) {}
  std::unique_ptr<Staging> begin(const StateDict& state) override {
    return std::make_unique<Slow>(DefaultStager::begin(state), longer_);
  }

 private:
  struct Slow : Staging {
    Slow(std::unique_ptr<Staging> of, milliseconds by) : inner(std::move(of)), longer(by) {}
    StateDict finish() override {
      system_hands().sleep(longer);
      return inner->finish();
    }
    const std::unique_ptr<Staging> inner;
    const milliseconds longer;
  };
  const milliseconds longer_;
};

void late(const std::string& directory, bool copies, int rank, milliseconds time) {
  Member self(World::from_environment(world_options()), directory, 0);
  const bool is_late = self.world.rank() == rank;
  self.save(1);
  if (!copies) {
    if (is_late) system_hands().sleep(time);
    return self.save(2);
  }
  AsyncSaveOptions options;
  if (is_late) options.stager = std::make_shared<SlowStager>(time);
  self.checkpointer.async_save(state_of(2, self.world.rank(), self.world.size()), self.id, self.saving, options).result();
}

void manage(const std::string& directory) {
  const World world = World::from_environment(world_options());
  CheckpointManagerOptions options;
  options.retention.keep_last = 1;
  CheckpointManager manager(world, directory, options);
  for (int step = 1; step <= 3; ++step) manager.save(step, state_of(step, world.rank(), world.size()));
}

// --- copy, resume --------------------------------------------------------------------------------

const std::string kTieredRun = "tiered://pair/run";

void define_tiers(const std::string& directory) {
  TierOptions options;
  options.near_url = directory + "/near";
  options.far_url = directory + "/far";
  options.takeover_after = milliseconds(200);  // the copies of a killed process are taken over then
  options.drain_patience = seconds(30);
  register_tier("pair", options);
}

void copy(const std::string& directory) {
  define_tiers(directory);
  const World world = World::from_environment(world_options());
  const Board board(directory);
  const std::string id = kTieredRun + "/checkpoint";
  Checkpointer checkpointer(world);
  checkpointer.save(state_of(1, world.rank(), world.size()), id);
  require(wait_for_copies(kTieredRun), "the first save is copied");
  // Nothing is copied while a writer is open. So the second copy begins when all have saved.
  const auto writer = open_store(kTieredRun + "/checkpoint")->create("held." + std::to_string(world.rank()));
  checkpointer.save(state_of(2, world.rank(), world.size()), id);
  board.post("report." + std::to_string(world.rank()), "ok\n");
  board.await_all("report", all_but(-1, world.size()));
  writer->discard();
  // The others may copy, until the launcher ends them because of the victim.
  wait_for_copies(kTieredRun, seconds(30));
}

void resume(const std::string& directory) {
  define_tiers(directory);
  for (const LostCheckpoint& lost : resume_copies(kTieredRun)) std::cout << "lost " << lost.url << std::endl;
  require(wait_for_copies(kTieredRun), "everything is copied");
}

// --- hang ----------------------------------------------------------------------------------------

// If it hangs, waits in a named function before it writes, until rank 0 has reported.
class HangingWriter : public CheckpointWriter {
 public:
  HangingWriter(const Board& board, bool hangs) : board_(board), hangs_(hangs) {}
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    if (hangs_) wait_in_the_user_hook(&board_, &gate_);
    return CheckpointWriter::write_data(plan, planner);
  }

 private:
  const Board& board_;
  const bool hangs_;
  const std::string gate_ = "report.0";
};

void hang(const std::string& directory, int victim) {
  WorldOptions options = world_options();
  options.runtime.cancel_grace = milliseconds(500);
  options.failure_directory = directory;  // the writer is a user's
  Member self(World::from_environment(options), directory, 0);
  self.save(1);
  self.saving.storage_writer = std::make_shared<HangingWriter>(self.board, self.world.rank() == victim);
  self.saving.deadline = milliseconds(500);
  self.report("report", told([&] { self.save(2); }));
  self.board.await_all("report", all_but(-1, self.world.size()));
}

// --- leave, check --------------------------------------------------------------------------------

void leave(const std::string& directory, int coordinator, int victim, const std::string& how) {
  Member self(World::from_environment(), directory, coordinator);
  if (how == "killed-later") {  // after a save, and the launcher ends the others
    self.save(1);
    if (self.world.rank() == victim) ::raise(SIGKILL);
    for (;;) ::pause();
  }
  if (self.world.rank() == victim) {
    if (how == "killed") ::raise(SIGKILL);
    ::_exit(std::stoi(how));
  }
  self.report("report", told([&] { self.save(1); }));
  self.board.await_all("report", all_but(victim, self.world.size()));
}

void check(const std::vector<std::string>& directories) {
  Checkpointer checkpointer(World::from_environment(world_options()));
  for (const auto& directory : directories) {
    const int generation = load_generation(checkpointer, directory + "/checkpoint");
    if (checkpointer.world().rank() == 0) std::cout << directory << " " << generation << std::endl;
  }
}

void own(const std::string& directory, bool is_save, int victim) {
  const World world = World::from_environment(world_options());
  // The world of one in which this rank saves is made later.
  if (world.rank() == victim) allow_injection();
  Checkpointer checkpointer(world);
  if (!is_save) {
    LoadOptions options;
    options.use_collectives = false;
    std::cout << "generation " << load_generation(checkpointer, directory + "/checkpoint", options) << std::endl;
    return;
  }
  for (const int generation : {1, 2}) {
    SaveOptions options;
    options.use_collectives = false;
    options.step = generation;
    checkpointer.save(state_of(generation, world.rank(), world.size()), directory + "/checkpoint", options);
  }
}

int run(const std::vector<std::string>& arguments) {
  const std::string& what = arguments.at(0);
  if (what == "attempt") {
    attempt(arguments.at(1), arguments.at(2) == "save", std::stoi(arguments.at(3)), std::stoi(arguments.at(4)));
  } else if (what == "freeze") {
    freeze(arguments.at(1), arguments.at(2) == "save", std::stoi(arguments.at(3)), {arguments.begin() + 4, arguments.end()});
  } else if (what == "rejoin") {
    rejoin(arguments.at(1), std::stoi(arguments.at(2)));
  } else if (what == "save") {
    save(arguments.at(1), std::stoi(arguments.at(2)), arguments.at(3));
  } else if (what == "cancel") {
    cancel(arguments.at(1), std::stoi(arguments.at(2)));
  } else if (what == "hang") {
    hang(arguments.at(1), std::stoi(arguments.at(2)));
  } else if (what == "own") {
    own(arguments.at(1), arguments.at(2) == "save", std::stoi(arguments.at(3)));
  } else if (what == "heedless") {
    Member(World::from_environment(world_options()), arguments.at(1), 0).save(1);
    Member(World::single(), arguments.at(1), 0).save(2);
  } else if (what == "leave") {
    leave(arguments.at(1), std::stoi(arguments.at(2)), std::stoi(arguments.at(3)), arguments.at(4));
  } else if (what == "late") {
    late(arguments.at(1), arguments.at(2) == "copy", std::stoi(arguments.at(3)), milliseconds(std::stoi(arguments.at(4))));
  } else if (what == "manage") {
    manage(arguments.at(1));
  } else if (what == "copy") {
    copy(arguments.at(1));
  } else if (what == "resume") {
    resume(arguments.at(1));
  } else if (what == "check") {
    check({arguments.begin() + 1, arguments.end()});
  } else {
    throw Error(ErrorCode::kInvalidArgument, "there is no \"" + what + "\"");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.at(0) != "heedless" && arguments.at(0) != "own") allow_injection();
    return run(arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
