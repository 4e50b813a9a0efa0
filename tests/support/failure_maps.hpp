// Helpers that read failure maps.
#pragma once

#include <set>

#include <cairn/base/failure.hpp>

namespace cairn::testing {

inline std::set<int> ranks_of(const FailureMap& failures) {
  std::set<int> ranks;
  for (const auto& entry : failures) ranks.insert(entry.first);
  return ranks;
}

}  // namespace cairn::testing
