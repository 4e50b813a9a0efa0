// A simulated world: jobs that run one after another on a shared disk. Zombies of an earlier job
// may wake up in a later one. One seed decides what the jobs do, what goes wrong, and in which
// order events happen.
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
  // A save that continues in the background while the trainer makes its next calls.
  bool background = false;
  // On each rank, cancels background saves whose turn has not come yet, as WhileInFlight::kReplace
  // does. Otherwise saves queue up without limit. No public policy allows that, but the guarantees
  // for two saves must hold for more.
  bool replaces = false;
};

// A fault that hits a job.
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
    kLinksDie,
    kSupervisorDies,
    kShutDown,
    kPowerLoss,
    kStopsCalling,
    kCancels,
  };
  // The trigger: a moment of virtual time, the n-th disk operation, a coordinator entering a state,
  // or the n-th message that an actor of `rank` has handled.
  enum class When { kTime, kOperation, kState, kMessage };

  What what = What::kKillProcess;
  int rank = -1;  // -1: the rank that made the operation or entered the state
  int peer = 0;
  Duration length{0};
  When when = When::kTime;
  Duration time{0};             // for kState: the delay after entering it
  std::uint64_t operation = 0;  // of the disk, or of the rank's actors, within the job
  protocol::CoordinatorMachine::State state = protocol::CoordinatorMachine::State::kIdle;
  std::uint64_t occurrence = 0;      // of the state, within the job
  std::optional<Survival> survival;  // for a power loss; without it the dice decide
  bool oldest = false;               // for kCancels: the oldest running call, else the newest
};
const char* to_string(Trouble::What what);

// One job: the number of ranks, their calls and their faults.
struct JobSpec {
  int size = 1;
  std::vector<CallSpec> program;
  std::vector<Trouble> troubles;
  std::vector<RankTroubles> ranks;  // by rank; may be shorter
  bool zombies = false;             // ranks that are frozen at the end may wake up later
  bool lockstep = false;            // no rank makes a call before all others have ended the previous one
  bool own_tools = false;           // each background save has its own planner and writer
  bool shares_reads = false;        // in a load, each rank's read ends once those of all others have
  bool quiet = true;                // nothing goes wrong: every call must succeed
};

class Job {
 public:
  Job(World& world, int index, JobSpec spec);

  void start();
  bool ended() const;
  // Checks a job that has ended: agreement, order and, unless it may leave zombies, that live ranks
  // have no work left. Kills every process except zombies.
  void finish();

  int index() const { return index_; }
  int size() const { return spec_.size; }
  const JobSpec& spec() const { return spec_; }
  const std::string& incarnation() const { return incarnation_; }
  Network& network() { return *network_; }
  SimulatedRank& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }

  std::uint64_t operations() const { return operations_; }  // of the disk
  bool is_undisturbed() const;
  // Returns whether no trouble of this job can keep live ranks from hearing each other without
  // delay.
  bool all_can_talk() const;
  // Returns whether every rank that is neither dead nor frozen has ended `calls` calls.
  bool have_ended(std::uint64_t calls) const;

  // Returns whether every rank has moved its data in this attempt.
  bool all_moved(RankWatch::Checkpointer checkpointer, std::uint64_t attempt) const;

  // Returns whether some rank holds a different value from the others in this call.
  bool differ_in(std::uint64_t call) const;

  // Called by the job's ranks.
  void moved(RankWatch::Checkpointer checkpointer, std::uint64_t attempt, int rank) {
    moved_[{checkpointer, attempt}].insert(rank);
  }
  // Start the troubles that wait for this operation or state.
  void on_operation(SimulatedRank& rank);
  void on_state(SimulatedRank& rank, protocol::CoordinatorMachine::State state);
  void on_message(SimulatedRank& rank, std::uint64_t number);

 private:
  void befall(const Trouble& trouble, SimulatedRank* by);

  World& world_;
  const int index_;
  const JobSpec spec_;
  std::string incarnation_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  std::unique_ptr<Network> network_;
  std::vector<bool> begun_;  // by trouble
  std::map<std::pair<RankWatch::Checkpointer, std::uint64_t>, std::set<int>> moved_;
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
  // Runs the jobs that the seed chooses, then a quiet job that loads and saves, and checks the
  // world.
  void run_seed();
  // Kills every process, zombies included, and restarts the disk. Without `survival` the dice
  // decide which unsynced data the disk keeps.
  void lose_power(const std::optional<Survival>& survival);
  // Kills all zombies, runs a quiet job of `size` ranks, and checks the disk.
  void check_end(int size);

  Job& job(int index) { return *jobs_[static_cast<std::size_t>(index)]; }
  int jobs() const { return static_cast<int>(jobs_.size()); }
  const std::vector<std::string>& violations() const { return ledger.violations(); }

  bool tracing = false;  // to stdout
  // An existing directory for the traces of all ranks, with contents. Empty: no traces.
  std::string recordings;
  void trace(const std::string& who, const std::string& what) const;
  // Takes an event of an actor into the digest.
  void record(const ObservedEvent& event);
  // Returns a digest of all events of actors so far.
  std::size_t digest() const { return digest_; }

  VirtualTime time;
  Dice dice;
  Dice late_dice;        // for later additions, so that the worlds of most seeds stay the same
  Dice caller_dice;      // for cancellations and deadlines
  Dice background_dice;  // for background saves
  Dice agreement_dice;
  Dice shell_dice;  // for messages that cannot be sent
  Coverage& coverage;
  testing::SimulatedFileSystem files;
  Ledger ledger;
  RuntimeOptions options;
  std::uint64_t last_content = 0;  // every save has its own number

  // An observer of the world.
  class Witness {
   public:
    virtual ~Witness() = default;
    // A planned trouble has begun. `state` is the state of the rank that it hits.
    virtual void befell(const VirtualTime& time, RankState state) = 0;
    virtual void entered(const VirtualTime& time, int rank, protocol::CoordinatorMachine::State state) = 0;  // of a coordinator
    virtual void reported(const Report& report) = 0;
  };
  Witness* witness = nullptr;  // may be null

  // The rank whose hook is running, for the disk; nullptr: none.
  SimulatedRank* running = nullptr;
  FileSystem* disk = nullptr;  // of the running rank

 private:
  std::vector<std::unique_ptr<Job>> jobs_;
  std::size_t digest_ = 0;
};

}  // namespace cairn::simulation
