// Helpers that read failure maps.
#pragma once

#include <set>

#include <cairn/base/failure.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {

inline std::set<int> ranks_of(const FailureMap& failures) {
  std::set<int> ranks;
  for (const auto& entry : failures) ranks.insert(entry.first);
  return ranks;
}

// Returns the failure of `rank` if it is the only one, else nothing.
inline Thrown only_failure(const FailureMap& failures, int rank) {
  if (ranks_of(failures) != std::set<int>{rank}) return {};
  return {true, failures.at(rank).code, failures.at(rank).what};
}

// Returns the failures of a save or load, none if it succeeds.
template <class Call>
FailureMap failures_of(Call&& call) {
  try {
    call();
  } catch (const CheckpointException& exception) {
    return exception.failures();
  }
  return {};
}

}  // namespace cairn::testing
