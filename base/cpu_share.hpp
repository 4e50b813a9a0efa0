// How many threads one rank may use to move bytes.
#pragma once

namespace cairn {

// Returns the CPUs of this host divided by its ranks, or the CPUs that this process may use if they
// are fewer; at least 2 and at most 16. Launchers give the number of ranks: LOCAL_WORLD_SIZE
// (torchrun, cairn-launch), OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI), MPI_LOCALNRANKS (MPICH) or
// SLURM_STEP_TASKS_PER_NODE. Without any of these, there is one rank. Thread-safe as long as no
// thread changes the environment.
unsigned cpu_share();

}  // namespace cairn
