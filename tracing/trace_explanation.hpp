// Explains why a save or load ended as it did. Gives the chain of causes that led to each failure,
// then the chain that led to the end of the call. `cairn trace explain` prints the result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>

namespace cairn {

struct Explanation {
  std::string title;      // "What led to the failure of rank 1 in write"
  int rank = 0;           // the rank that failed or ended
  const TracedFailure* failure = nullptr;  // in the diagnosis; null if this explains the end of the call
  // The events from the trainer's call to the failure, or to the end of the call. For a lost rank,
  // the chain ends with the beginning of the hook that was running, or with the rank's last known
  // event if no hook was. Empty if the traces do not contain the event with which the chain would
  // end.
  std::vector<ChainLink> chain;
};

// With `rank`, explains only the failure and the end of the call on that rank. Otherwise explains
// all failures, and the end on the rank that ended last.
std::vector<Explanation> explain(const Trace& trace, const TraceClocks& clocks, const Diagnosis& diagnosis,
                                 std::optional<int> rank = std::nullopt);

}  // namespace cairn
