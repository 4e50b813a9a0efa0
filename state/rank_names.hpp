// Names the values in a checkpoint that each rank has for itself.
#pragma once

#include <string>

namespace cairn {

// Returns the last key of the path to the value of rank `rank`. PyTorch sees the values as a dict.
inline std::string rank_key(int rank) { return "rank_" + std::to_string(rank); }
inline std::string rank_name(const std::string& fqn, int rank) { return fqn + '.' + rank_key(rank); }

}  // namespace cairn
