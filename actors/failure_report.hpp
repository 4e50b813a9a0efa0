// The report of a failed call, for people: the failure map as text, and the last events of some ranks.
//
//   <directory>/failure-<save id>/report.txt                          by the first of these ranks: all have the same map
//   <directory>/failure-<save id>/rank-00003-1f2e3d4c-001.trace       of `reporting_ranks`; `cairn trace` reads them
//
// A call that failed before it had a save id: failure-<incarnation>-<checkpointer>-call-<ordinal>, where the ordinal is the rank's own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/trace.hpp>

namespace cairn {

// At most this many reports stay in one directory: a new one removes the oldest. A report directory into which somebody has put
// other files stays, and does not count.
inline constexpr std::size_t kFailureReportsMax = 16;

// At most this many ranks of a call report its failure.
inline constexpr std::size_t kReportingRanksMax = 8;

// Returns the ranks that report: live ranks, first those that the map names, then the others, by rank. All ranks have the same
// map, so they need not ask each other.
std::set<int> reporting_ranks(const FailureMap& failures, int world_size);
// Returns whether ranks leave traces: not if the map tells of a full disk.
bool leaves_traces(const FailureMap& failures);

struct FailedCall {
  std::string directory;  // of reports: must be there
  std::string checkpoint_id;
  std::string operation;  // "save"
  CallId id;
  Outcome outcome;
};

// Writes the report on a thread of its own. Calls `then` on another thread when that has ended, after 2 s at the latest, so that
// a file system that hangs delays nobody for longer. Returns at once. If this rank does not report, or no thread can be started,
// calls `then` on this thread. Errors are only logged.
void write_failure_report(FailedCall call, const std::string& incarnation, int rank, int world_size,
                          std::shared_ptr<const Tracer> tracer, std::function<void()> then);

}  // namespace cairn
