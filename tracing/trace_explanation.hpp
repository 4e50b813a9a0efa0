// Why a save or load ended as it did: of each failure what led to it, then what led to the end. What `cairn trace explain` prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>

namespace cairn {

struct Explanation {
  std::string title;      // "What led to the failure of rank 1 in write"
  int rank = 0;           // whose failure or end it is
  std::string phase;      // of the failure; "" of an end
  std::string own_phase;  // as in TracedFailure
  bool is_failure = false;
  // From the trainer's call to where it failed, or of a rank that is gone to the hook that it was in, or to its last sign of life; empty if
  // no trace has anything of that.
  std::vector<ChainLink> chain;
};

// `rank`: only its failure, and its end. Otherwise all failures, and the end on the rank that ended last.
std::vector<Explanation> explain(const Trace& trace, const TraceClocks& clocks, const Diagnosis& diagnosis,
                                 std::optional<int> rank = std::nullopt);

}  // namespace cairn
