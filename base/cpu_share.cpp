#include <cairn/base/cpu_share.hpp>

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace cairn {

unsigned cpu_share() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on a machine with more CPUs than the set can hold.
  const bool is_known = sched_getaffinity(0, sizeof set, &set) == 0;
  const unsigned cpus = is_known ? static_cast<unsigned>(CPU_COUNT(&set)) : std::thread::hardware_concurrency();
  unsigned long ranks = 1;
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"})
    if (const char* value = std::getenv(name)) ranks = std::max(ranks, std::strtoul(value, nullptr, 10));
  // Launchers may have bound this rank to its share already.
  const unsigned long share = std::min<unsigned long>(cpus, std::max(cpus, std::thread::hardware_concurrency()) / ranks);
  return static_cast<unsigned>(std::clamp<unsigned long>(share, 2, 16));
}

}  // namespace cairn
