// Reads from environment variables how a launcher started this process. Internal: users see
// World::from_environment and docs/launching.md.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// Environment variables. An empty value counts as unset.
using Variables = std::map<std::string, std::string>;

// The key under which Variables also has the id of the process that serves PMI to the ranks of one
// node. With MPICH's mpiexec, only this id tells two jobs on one machine apart.
constexpr const char* kPmiServer = "process behind PMI_FD";

// Returns the value, or "" if the variable is unset or `name` is null.
std::string value_of(const Variables& variables, const char* name);
// Copies this process's environment, and adds kPmiServer if PMI_FD is a socket.
Variables variables_of_process();

// One of the ranks that a launcher started.
struct Task {
  std::string launcher;  // as CAIRN_LAUNCHER names it
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  // The launchers whose variables say the same rank and size; `launcher` comes first.
  std::vector<std::string> agreeing;
};

// Returns which rank this process is, or nothing if no launcher started it or CAIRN_LAUNCHER is
// "none". Throws kInvalidArgument, naming the variables, if a variable is malformed or missing, if
// the variables of launchers contradict each other, or if this process runs in a Slurm allocation
// of several tasks but is not one of these tasks.
std::optional<Task> find_task(const Variables& variables);

// Throws kPrecondition if a launcher started several ranks, because each of them would run `call`
// in a world of one. Throws what `find_task` throws. `remedy` tells the user what to do.
void refuse_world_of_one(const std::string& call, const std::string& remedy);

// A rank's place in its job.
struct Place {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_host;
  int master_port = 0;
  bool agent_hosts = false;  // the launcher's agent serves the store, instead of rank 0
  int restarts = 0;          // restarts of the job so far; the agent's store outlives them
  std::string job;           // the name of the job if it determined the port; otherwise empty
};

// Returns the place of `task`. MASTER_ADDR and MASTER_PORT say where rank 0 is. Without
// MASTER_ADDR, its host is:
// - with Slurm, the first node of the step, or 127.0.0.1 if there is only one;
// - with Open MPI and PMI, if all ranks run on one node, 127.0.0.1.
// Without MASTER_PORT, the port is computed from the name that the launcher gives to the job.
// Throws kInvalidArgument naming the variable that is missing or malformed.
Place place_of(const Task& task, const Variables& variables);

// Returns the place of this process. Throws kInvalidArgument if no launcher started it, and what
// `find_task` and `place_of` throw.
Place place_in_environment();

}  // namespace cairn
