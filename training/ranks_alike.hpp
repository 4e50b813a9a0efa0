// Compares digests of an operation's arguments over the ranks.
#pragma once

#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

// Returns the world ranks whose digest differs from that of the group's first rank. A collective.
std::vector<int> ranks_that_differ(const Digest& own, const ProcessGroup& group);

}  // namespace cairn::training
