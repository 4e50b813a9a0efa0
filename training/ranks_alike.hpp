// Whether ranks are about to do the same.
#pragma once

#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

// The ranks, as numbered in the world, whose digest is not that of the group's first rank. A collective.
std::vector<int> ranks_that_differ(const Digest& own, const ProcessGroup& group);

}  // namespace cairn::training
