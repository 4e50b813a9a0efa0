#include <cairn/runtime/launch/launchers.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include <sys/socket.h>
#include <unistd.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>

namespace cairn {
namespace {

// The variables by which a launcher tells a process its rank. Null: it has no such variable.
struct Launcher {
  const char* name;
  const char* sign;  // set by this launcher, and by no other
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// An earlier launcher may run inside a later one: then the earlier one started this process.
constexpr std::array<Launcher, 7> kLaunchers{{
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", nullptr},
    // Set by hand, by Kubeflow's PyTorchJob or by cairn-launch.
    {"explicit", nullptr, "RANK", "WORLD_SIZE", "LOCAL_RANK", nullptr},
    {"openmpi", nullptr, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"pmi", nullptr, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // A batch script has SLURM_PROCID as well, but only the tasks of a step have SLURM_STEP_ID.
    {"slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {"pmix", nullptr, "PMIX_RANK", nullptr, nullptr, nullptr},
    {"kubernetes", nullptr, "JOB_COMPLETION_INDEX", nullptr, nullptr, nullptr},
}};

constexpr int kRanksMax = 1 << 20;
// Ports that follow from the name of a job lie below those that Linux gives to clients.
constexpr int kJobPortFirst = 15000;
constexpr int kJobPorts = 15000;

[[noreturn]] void refuse_variables(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

std::optional<int> number_of(const Variables& variables, const char* name, int least, int most) {
  const std::string text = value_of(variables, name);
  if (text.empty()) return std::nullopt;
  const auto value = parse_number<int>(text);
  // Refused, because with a default in its place ranks would make a wrong world.
  if (!value || *value < least || *value > most)
    refuse_variables(std::string("the environment variable ") + name + " is \"" + text + "\", not a number from " +
                     std::to_string(least) + " to " + std::to_string(most));
  return value;
}

// The values of one launcher's variables.
struct Reading {
  const Launcher* launcher;
  std::optional<int> rank;
  std::optional<int> size;

  bool agrees(const Reading& other) const {
    return (!rank || !other.rank || *rank == *other.rank) && (!size || !other.size || *size == *other.size);
  }
  std::string text() const {
    const std::string of_rank = rank ? launcher->rank + (" is " + std::to_string(*rank)) : "";
    const std::string of_size = size ? launcher->size + (" is " + std::to_string(*size)) : "";
    return of_rank + (rank && size ? " and " : "") + of_size;
  }
};

bool has_left_signs(const Launcher& launcher, const Variables& variables) {
  if (launcher.sign != nullptr) return !value_of(variables, launcher.sign).empty();
  return !value_of(variables, launcher.rank).empty() || !value_of(variables, launcher.size).empty();
}

Reading read_launcher(const Launcher& launcher, const Variables& variables) {
  Reading reading{&launcher, std::nullopt, number_of(variables, launcher.size, 1, kRanksMax)};
  reading.rank = number_of(variables, launcher.rank, 0, reading.size.value_or(kRanksMax) - 1);
  return reading;
}

std::string launcher_names() {
  std::string names;
  for (const auto& launcher : kLaunchers) names += std::string(launcher.name) + ", ";
  return names + "none";
}

// Reads the launcher that CAIRN_LAUNCHER names, and WORLD_SIZE if that launcher has no variable for
// the size.
std::vector<Reading> read_asked(const std::string& asked, const Variables& variables) {
  const auto* const launcher =
      std::find_if(kLaunchers.begin(), kLaunchers.end(), [&](const Launcher& known) { return known.name == asked; });
  if (launcher == kLaunchers.end()) refuse_variables("CAIRN_LAUNCHER is \"" + asked + "\", not one of " + launcher_names());
  if (!has_left_signs(*launcher, variables))
    refuse_variables("CAIRN_LAUNCHER is " + asked + ", but " + (launcher->sign != nullptr ? launcher->sign : launcher->rank) +
                     " is not set");
  std::vector<Reading> readings{read_launcher(*launcher, variables)};
  if (launcher->size == nullptr) {
    readings.push_back(read_launcher(kLaunchers[1], variables));
    readings.back().rank.reset();
  }
  return readings;
}

std::vector<Reading> read_all(const Variables& variables) {
  std::vector<Reading> readings;
  for (const auto& launcher : kLaunchers) {
    const bool is_torchrun = !readings.empty() && readings[0].launcher == &kLaunchers[0];
    if (&launcher == &kLaunchers[1] && is_torchrun) continue;  // the same variables
    if (has_left_signs(launcher, variables)) readings.push_back(read_launcher(launcher, variables));
  }
  return readings;
}

// Returns whether `outer` can have started the launcher of `inner`, which has started this process.
bool encloses(const Reading& outer, const Reading& inner, const Variables& variables) {
  if (outer.size == 1) return true;
  if (!inner.size || *inner.size == 1) return false;  // it would be alone in each of several tasks
  const std::string name = inner.launcher->name;
  if (name == "torchrun") {
    const auto agents = number_of(variables, "GROUP_WORLD_SIZE", 1, kRanksMax);
    return !agents || !outer.size || *agents == *outer.size;
  }
  if ((name == "openmpi" || name == "pmi") && outer.launcher->name == std::string("slurm")) {
    // mpirun and mpiexec start one daemon per node.
    const auto nodes = number_of(variables, "SLURM_STEP_NUM_NODES", 1, kRanksMax);
    return !nodes || !outer.size || *outer.size <= *nodes;
  }
  return false;
}

// Throws if two launchers contradict each other. torchrun's rank may equal that of the task that
// its agent runs in, but that means nothing.
void check_agreement(const std::vector<Reading>& readings, const Variables& variables) {
  const Reading& inner = readings.front();
  const auto first = readings.begin() + (inner.launcher == &kLaunchers[0] ? 1 : 0);
  for (auto outer = readings.begin() + 1; outer != readings.end(); ++outer) {
    const bool explained = std::any_of(first, outer, [&](const Reading& earlier) { return earlier.agrees(*outer); });
    if (explained || encloses(*outer, inner, variables)) continue;
    refuse_variables(inner.text() + ", but " + outer->text() + ": two launchers contradict each other; set CAIRN_LAUNCHER to " +
                     inner.launcher->name + " or " + outer->launcher->name + ", whichever started the ranks of this job");
  }
}

// Throws if this process is in a Slurm allocation of several tasks without being one.
void check_not_in_allocation(const Variables& variables) {
  const auto tasks = number_of(variables, "SLURM_NTASKS", 1, kRanksMax);
  if (value_of(variables, "SLURM_JOB_ID").empty() || tasks.value_or(1) == 1) return;
  refuse_variables("SLURM_NTASKS is " + std::to_string(*tasks) +
                   ", but this process is none of these tasks (SLURM_STEP_ID is not set): start it with srun, or set "
                   "CAIRN_LAUNCHER=none for a process on its own");
}

// Returns the first host of a Slurm node list: "n[08-11,20]x,m" gives "n08x".
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const auto close = list.find(']', i);
    if (close == std::string::npos) return "";
    const auto begin = i + 1;
    host += list.substr(begin, list.find_first_of(",-]", begin) - begin);
    i = close;
  }
  return host;
}

bool agrees_with(const Task& task, const char* launcher) {
  return std::find(task.agreeing.begin(), task.agreeing.end(), launcher) != task.agreeing.end();
}

// The location of rank 0, as far as the launchers tell it.
struct RankZero {
  std::string host;  // empty: on one of several nodes
  std::string job;   // empty: the launcher does not name jobs
};

RankZero find_rank_zero(const Task& task, const Variables& variables) {
  if (agrees_with(task, "slurm")) {
    const bool one_node = number_of(variables, "SLURM_STEP_NUM_NODES", 1, kRanksMax) == 1;
    // On one node loopback works, whatever the node's name resolves to. The count of restarts gives
    // each start a port of its own: ranks of the last one may still hold theirs.
    return {one_node ? "127.0.0.1" : first_host(value_of(variables, "SLURM_STEP_NODELIST")),
            value_of(variables, "SLURM_JOB_ID") + "." + value_of(variables, "SLURM_STEP_ID") + "." +
                value_of(variables, "SLURM_RESTART_COUNT")};
  }
  for (const auto& launcher : kLaunchers) {
    if (launcher.local_size == nullptr || !agrees_with(task, launcher.name)) continue;
    const bool one_node = task.size == 1 || number_of(variables, launcher.local_size, 1, kRanksMax) == task.size;
    RankZero rank_zero{one_node ? "127.0.0.1" : "", one_node ? value_of(variables, kPmiServer) : ""};
    // The launcher's own name of the job counts before the id of its server.
    for (const char* name : {"PMI_JOBID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}) {
      const std::string job = value_of(variables, name);
      if (!job.empty()) rank_zero.job = job;
    }
    return rank_zero;
  }
  return {};
}

// Throws if this is rank 0, and Slurm runs it on another node than `host`, the step's first one.
void check_first_node(const Task& task, const Variables& variables, const std::string& host) {
  const std::string node = value_of(variables, "SLURMD_NODENAME");
  if (task.rank != 0 || !agrees_with(task, "slurm") || host == "127.0.0.1" || node.empty() || node == host) return;
  refuse_variables("rank 0 runs on node " + node + " (SLURMD_NODENAME), not on the first node of SLURM_STEP_NODELIST, \"" +
                   value_of(variables, "SLURM_STEP_NODELIST") + "\": set MASTER_ADDR to the node of rank 0");
}

}  // namespace

std::string value_of(const Variables& variables, const char* name) {
  const auto found = name == nullptr ? variables.end() : variables.find(name);
  return found == variables.end() ? "" : found->second;
}

Variables variables_of_process() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  // Some launchers of MPI name no job. They have one server process per job and node, and its id
  // tells two jobs on one machine apart.
  const int pmi = std::atoi(value_of(variables, "PMI_FD").c_str());
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (pmi > 0 && ::getsockopt(pmi, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0)
    variables[kPmiServer] = std::to_string(peer.pid);
  return variables;
}

std::optional<Task> find_task(const Variables& variables) {
  const std::string asked = value_of(variables, "CAIRN_LAUNCHER");
  const auto readings = asked.empty() || asked == "none" ? read_all(variables) : read_asked(asked, variables);
  if (asked == "none") {
    if (number_of(variables, "WORLD_SIZE", 1, kRanksMax).value_or(1) > 1)
      refuse_variables("CAIRN_LAUNCHER is none, but WORLD_SIZE is " + value_of(variables, "WORLD_SIZE") + ": unset one of them");
    return std::nullopt;
  }
  if (readings.empty()) {
    check_not_in_allocation(variables);
    return std::nullopt;
  }
  check_agreement(readings, variables);

  Reading found = readings.front();
  Task task;
  task.launcher = found.launcher->name;
  const char* rank_variable = found.launcher->rank;
  std::optional<int> local_rank;
  for (const auto& reading : readings) {
    if (!found.agrees(reading)) continue;
    if (!found.rank && reading.rank) {
      found.rank = reading.rank;
      rank_variable = reading.launcher->rank;
    }
    if (!found.size) found.size = reading.size;
    task.agreeing.emplace_back(reading.launcher->name);
    if (!local_rank) local_rank = number_of(variables, reading.launcher->local_rank, 0, kRanksMax);
  }
  // A launcher without a variable for the size leaves it to WORLD_SIZE.
  const char* const size_variable = found.launcher->size != nullptr ? found.launcher->size : "WORLD_SIZE";
  const char* const missing = !found.rank ? rank_variable : !found.size ? size_variable : nullptr;
  if (missing != nullptr)
    refuse_variables(found.text() + ", but " + missing +
                     " is not set: set it, or start the ranks with a launcher; CAIRN_LAUNCHER=none is for a process on its own");
  if (*found.rank >= *found.size)
    refuse_variables(std::string(rank_variable) + " is " + std::to_string(*found.rank) + ", but " + size_variable + " is " +
                     std::to_string(*found.size));
  task.rank = *found.rank;
  task.size = *found.size;
  // A launcher that does not tell it is taken to run all ranks on one machine.
  task.local_rank = local_rank.value_or(task.rank);
  return task;
}

void refuse_world_of_one(const std::string& call, const std::string& remedy) {
  const auto task = find_task(variables_of_process());
  if (!task || task->size == 1) return;
  throw Error(ErrorCode::kPrecondition, call + " would run on this rank alone, but the launcher (" + task->launcher +
                                            ") has started " + std::to_string(task->size) + " ranks: " + remedy);
}

// An IPv6 address, which URLs write as "[::1]".
std::string without_brackets(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']' ? host.substr(1, host.size() - 2) : host;
}

Place place_of(const Task& task, const Variables& variables) {
  Place place;
  place.rank = task.rank;
  place.world_size = task.size;
  place.local_rank = task.local_rank;
  place.master_host = without_brackets(value_of(variables, "MASTER_ADDR"));
  const auto port = number_of(variables, "MASTER_PORT", 1, 65535);
  const RankZero rank_zero = place.master_host.empty() || !port ? find_rank_zero(task, variables) : RankZero();
  if (place.master_host.empty()) {
    place.master_host = rank_zero.host;
    check_first_node(task, variables, rank_zero.host);
  }
  if (place.master_host.empty())
    refuse_variables("the environment variable MASTER_ADDR is not set: set it, the same on all ranks, to the host of rank 0");
  if (!port && rank_zero.job.empty())
    refuse_variables(
        "the environment variable MASTER_PORT is not set: set it, the same on all ranks, to a port that is free on the host of "
        "rank 0");
  place.master_port = port.value_or(0);
  if (!port) {
    place.job = task.launcher + " " + rank_zero.job;
    // All ranks compute the same port without talking. Two jobs on one machine rarely get the same.
    place.master_port = kJobPortFirst + static_cast<int>(crc32(0, ByteSpan(place.job)) % kJobPorts);
  }
  if (agrees_with(task, "torchrun") || agrees_with(task, "explicit")) {
    // If torchrun's agent hosts the store, rank 0 must not.
    place.agent_hosts = value_of(variables, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    place.restarts = number_of(variables, "TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int>::max()).value_or(0);
  }
  return place;
}

Place place_in_environment() {
  const Variables variables = variables_of_process();
  const auto task = find_task(variables);
  if (!task)
    refuse_variables(
        "no launcher has started this process: neither WORLD_SIZE nor a variable of another launcher is set; start the ranks "
        "with cairn-launch, torchrun, mpirun or srun, or make the world with World::from_store, from_addresses or single");
  return place_of(*task, variables);
}

}  // namespace cairn
