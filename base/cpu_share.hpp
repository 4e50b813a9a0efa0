// How many threads one rank may use to move bytes.
#pragma once

namespace cairn {

// Returns the CPUs that this process may use, divided by the ranks on this host, but at least 2 and
// at most 16. Launchers give the number of ranks: LOCAL_WORLD_SIZE (torchrun, cairn-launch),
// OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI) or MPI_LOCALNRANKS (MPICH). Without any of these, there is
// one rank. Thread-safe as long as no thread changes the environment.
unsigned cpu_share();

}  // namespace cairn
