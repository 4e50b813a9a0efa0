// A simulated world: jobs, one after the other, on one shared disk; zombies of an earlier job may wake up in a later one. One
// seed decides everything: what the jobs do, what befalls them, and what happens first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/tests/simulation/ledger.hpp>
#include <cairn/tests/simulation/simulated_rank.hpp>

namespace cairn::simulation {

struct CallSpec {
  protocol::Operation operation = protocol::Operation::kSave;
  std::string place = "/runs/run/step";
  int coordinator = 0;
  Version version;
  // A save that goes on while the trainer makes its next calls.
  bool background = false;
  // Saves in the background whose turn has not come on a rank are cancelled there, as by WhileInFlight::kReplace. Without it they
  // queue up, which no policy lets them do: what must hold for two must hold for more.
  bool replaces = false;

  // Whether only the coordinator runs the hook.
  static bool is_coordinators(protocol::Hook hook) {
    using protocol::Hook;
    return hook == Hook::kCreateGlobalPlan || hook == Hook::kPrepareGlobalPlan || hook == Hook::kFinish || hook == Hook::kDecide;
  }
};

// Something that befalls a job.
struct Trouble {
  enum class What {
    kKillProcess,
    kKillMachine,
    kFreeze,
    kReset,
    kBlock,
    kPartition,
    kPlannerDies,
    kStorageDies,
    kCoordinatorDies,
    kShutDown,
    kPowerLoss,
    kStopsCalling,
    kCancels,
  };
  // When: at a moment of virtual time, at the n-th operation of the disk, or when a coordinator enters a state.
  enum class When { kTime, kOperation, kState };

  What what = What::kKillProcess;
  int rank = -1;  // -1: whoever made the operation or entered the state
  int peer = 0;
  Duration length{0};
  When when = When::kTime;
  Duration time{0};             // also: how long after the state was entered
  std::uint64_t operation = 0;  // of the disk, within the job
  protocol::CoordinatorMachine::State state = protocol::CoordinatorMachine::State::kIdle;
  std::uint64_t occurrence = 0;      // of the state, within the job
  std::optional<Survival> survival;  // of a power loss; else the dice decide
  bool oldest = false;               // of the calls that run, for a caller that cancels; else the newest
};
const char* to_string(Trouble::What what);

// One life of a world of ranks.
struct JobSpec {
  int size = 1;
  std::vector<CallSpec> program;
  std::vector<Trouble> troubles;
  std::vector<RankTroubles> ranks;  // by rank; may be shorter
  bool zombies = false;             // who is frozen at the end is left to wake up later
  bool lockstep = false;            // nobody makes a call before all others have ended the one before
  bool own_tools = false;           // saves in the background have planners and writers of their own
  bool quiet = true;                // nothing goes wrong: every call must succeed
};

class Job {
 public:
  Job(World& world, int index, JobSpec spec);

  void start();
  bool ended() const;
  // At the end: who is alive has nothing left to do, unless it is a zombie, and then every process dies.
  void finish();

  int index() const { return index_; }
  int size() const { return spec_.size; }
  const JobSpec& spec() const { return spec_; }
  const std::string& incarnation() const { return incarnation_; }
  Network& network() { return *network_; }
  SimulatedRank& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }

  std::uint64_t operations() const { return operations_; }  // of the disk
  bool is_undisturbed() const;
  // Whatever befalls it: who is alive hears everybody who is, at once.
  bool all_can_talk() const;
  // Whether all who can have ended so many calls.
  bool have_ended(std::uint64_t calls) const;

  // Whether every rank has moved its data in the attempt of this counter of a slot.
  bool all_moved(const std::string& slot, std::uint64_t counter) const;

  // Whether some rank holds another value than the others in this call.
  bool differ_in(std::uint64_t call) const;

  // Called by its ranks.
  void moved(const std::string& slot, std::uint64_t counter, int rank) { moved_[{slot, counter}].insert(rank); }
  // For troubles to begin.
  void on_operation(SimulatedRank& rank);
  void on_state(SimulatedRank& rank, protocol::CoordinatorMachine::State state);

 private:
  void befall(const Trouble& trouble, SimulatedRank* by);

  World& world_;
  const int index_;
  const JobSpec spec_;
  std::string incarnation_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  std::unique_ptr<Network> network_;
  std::vector<bool> begun_;  // by trouble
  std::map<std::pair<std::string, std::uint64_t>, std::set<int>> moved_;
  std::uint64_t operations_ = 0;
  std::map<protocol::CoordinatorMachine::State, std::uint64_t> states_;
};

class World {
 public:
  World(std::uint64_t seed, Coverage& coverage);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Runs one job to its end.
  void run(JobSpec spec);
  // The jobs that the seed decides on, then a quiet one that loads and saves, and what must be true at the end.
  void run_seed();
  // Every process dies, zombies too, and the disk keeps of what was not synced what it likes.
  void lose_power(const std::optional<Survival>& survival);
  // What must be true of a world in which nothing goes wrong any more.
  void check_end(int size);

  Job& job(int index) { return *jobs_[static_cast<std::size_t>(index)]; }
  const std::vector<std::string>& violations() const { return ledger.violations(); }

  bool tracing = false;  // to stdout
  // A directory that is there: the traces of all ranks go to it, with contents. Empty: there are none.
  std::string recordings;
  void trace(const std::string& who, const std::string& what) const;

  VirtualTime time;
  Dice dice;
  Dice late_dice;        // for what was thought of later: the worlds of most seeds stay as they were
  Dice caller_dice;      // for what callers ask for
  Dice background_dice;  // for trainers that do not wait for their saves
  Dice agreement_dice;
  Coverage& coverage;
  testing::SimulatedFileSystem files;
  Ledger ledger;
  RuntimeOptions options;
  std::uint64_t last_content = 0;  // every save has its own

  // Somebody who looks on.
  class Witness {
   public:
    virtual ~Witness() = default;
    // What was planned has begun; `state`: of the rank that it befalls.
    virtual void befell(const VirtualTime& time, const std::string& state) = 0;
    virtual void entered(const VirtualTime& time, int rank, protocol::CoordinatorMachine::State state) = 0;  // of a coordinator
    virtual void reported(const Report& report) = 0;
  };
  Witness* witness = nullptr;  // may be null

  // Whose hook is running, for the disk; nullptr: nobody's.
  SimulatedRank* running = nullptr;
  FileSystem* disk = nullptr;  // of whoever is running

 private:
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace cairn::simulation
