// The ranks that cairn-launch or torchrun started, as a process group for training.
#pragma once

#include <cairn/training/process_group.hpp>

namespace cairn::training {

// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without WORLD_SIZE, one rank alone. Meets at the store of MASTER_PORT, which
// cairn::World uses as well, in any order. Where MASTER_ADDR is not this machine's loopback and the options name no address, ranks reach
// each other by their host names. Throws as World::from_environment and ProcessGroup::from_store do. All ranks call it equally often.
ProcessGroup process_group_from_environment(ProcessGroupOptions options = {});

}  // namespace cairn::training
