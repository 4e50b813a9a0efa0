// The report of a failed call, for people: the failure map as text, and the last events of some ranks.
//
//   <directory>/failure-<save id>/report.txt                          by the first of these ranks: all would write the same map
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

// In one directory. With another one the oldest goes: a directory with such a name, in which there is nothing but what Cairn writes. One
// into which somebody has put something else stays, and does not count.
inline constexpr std::size_t kFailureReportsMax = 16;

// So many ranks of a call report its failure.
inline constexpr std::size_t kReportingRanksMax = 8;

// Returns the ranks that report: of those that are alive, first the ones that the map names, then the others, by rank. All ranks have
// the same map, and so need not ask each other.
std::set<int> reporting_ranks(const FailureMap& failures, int world_size);
// Whether there is room for traces, as far as the map tells.
bool leaves_traces(const FailureMap& failures);

struct FailedCall {
  std::string directory;  // of reports: must be there
  std::string checkpoint_id;
  std::string operation;  // "save"
  CallId id;
  Outcome outcome;
};

// Writes on a thread of its own, and calls `then` on another one, once that has ended, after 2 s at the latest: a file system that says
// nothing keeps nobody. Returns at once. A rank that does not report calls `then` itself, as one does that gets no threads. What cannot be
// written is logged, and nothing else.
void write_failure_report(FailedCall call, const std::string& incarnation, int rank, int world_size,
                          std::shared_ptr<const Tracer> tracer, std::function<void()> then);

}  // namespace cairn
