// Creates a process group for training from the ranks that cairn-launch or torchrun started.
#pragma once

#include <cairn/training/process_group.hpp>

namespace cairn::training {

// Creates a group from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without WORLD_SIZE, the group
// has one rank. The ranks meet at the store at MASTER_PORT; a cairn::World may use the same store,
// before or after. If MASTER_ADDR is not this machine's loopback and the options give no address,
// ranks reach each other by host name. Throws what World::from_environment and
// ProcessGroup::from_store throw. All ranks must call it the same number of times.
ProcessGroup process_group_from_environment(ProcessGroupOptions options = {});

}  // namespace cairn::training
