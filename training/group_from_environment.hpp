// Creates a process group for training from the ranks that a launcher started.
#pragma once

#include <cairn/training/process_group.hpp>

namespace cairn::training {

// Creates a group from the environment variables of torchrun, mpirun, srun, cairn-launch or another
// launcher (docs/launching.md). The group has one rank if no launcher started this process. The
// ranks meet at the store at MASTER_PORT; a cairn::World may use the same store, before or after.
// If the options give no address, one is chosen as for a world (WorldOptions::bind_address), but no
// secret is needed. Throws what World::from_environment and ProcessGroup::from_store throw. All
// ranks must call this function the same number of times.
ProcessGroup process_group_from_environment(ProcessGroupOptions options = {});

}  // namespace cairn::training
