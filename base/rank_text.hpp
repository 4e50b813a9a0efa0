// Ranks in texts for people.
#pragma once

#include <string>
#include <vector>

namespace cairn {

// "rank 3", "ranks 0-3, 7", "ranks 0, 2, 4 and 500 more": `ranks` ascending and not empty.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace cairn
