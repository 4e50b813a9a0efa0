// Formats lists of ranks for messages.
#pragma once

#include <string>
#include <vector>

namespace cairn {

// Returns a text such as "rank 3", "ranks 0-3, 7" or "ranks 0, 2, 4 and 500 more". `ranks` must be
// ascending and not empty.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace cairn
