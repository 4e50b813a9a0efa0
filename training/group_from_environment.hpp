// Creates a process group for training from the ranks that a launcher started.
#pragma once

#include <cairn/training/process_group.hpp>

namespace cairn::training {

// Creates a group from the environment variables of torchrun, mpirun, srun, cairn-launch or another
// launcher (docs/launching.md). The group has one rank if no launcher started this process. The
// ranks meet in the store at MASTER_PORT. A cairn::World may use the same store, whether it is made
// before or after the group. If the options give no address, one is chosen in the same way as for a
// world that has a secret (see WorldOptions::bind_address). The group itself needs no secret.
// Throws what World::from_environment and ProcessGroup::from_store throw. All ranks must call this
// function the same number of times.
ProcessGroup process_group_from_environment(ProcessGroupOptions options = {});

}  // namespace cairn::training
