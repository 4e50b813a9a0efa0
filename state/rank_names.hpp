// How values that each rank has for itself are named in a checkpoint.
#pragma once

#include <string>

namespace cairn {

// The last key of the path to rank `rank`'s value: PyTorch sees a dict of them.
inline std::string rank_key(int rank) { return "rank_" + std::to_string(rank); }
inline std::string rank_name(const std::string& fqn, int rank) { return fqn + '.' + rank_key(rank); }

}  // namespace cairn
