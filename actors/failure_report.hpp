// Writes the report of a failed call: the failure map as text, and the last events of some ranks.
//
//   <directory>/failure-<save id>/report.txt                     written by the first rank to come
//   <directory>/failure-<save id>/rank-00003-1f2e3d4c-001.trace  one for each reporting rank
//
// `cairn trace` reads these directories. All ranks have the same failure map, so one report.txt is
// enough. If the call failed before it had a save id, the directory is named
// failure-<incarnation>-<checkpointer>-call-<ordinal>, with the rank's own ordinal.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/trace.hpp>

namespace cairn {

// The maximum number of reports kept in one directory: a new report removes the oldest. A report
// directory that contains foreign files is kept, and does not count.
inline constexpr std::size_t kFailureReportsMax = 16;

// The maximum number of ranks that report the failure of one call.
inline constexpr std::size_t kReportingRanksMax = 8;

// Returns the ranks that report. All are live ranks: first those that the map names, then the
// others, by rank. All ranks have the same map, so they agree without communication.
std::set<int> reporting_ranks(const FailureMap& failures, int world_size);
// Returns whether ranks write trace files: false if the map contains a full disk.
bool leaves_traces(const FailureMap& failures);

struct FailedCall {
  std::string directory;  // where reports go; must exist
  std::string checkpoint_id;
  std::string operation;  // for example "save"
  CallId id;
  Outcome outcome;
};

// Writes the report on a thread of its own and returns at once. Calls `then` on another thread
// after the report is written, or after 2 s, so that a hung file system does not delay the caller
// longer. If this rank does not report, or no thread can be started, calls `then` on this thread.
// Errors are only logged.
void write_failure_report(FailedCall call, const std::string& incarnation, int rank, int world_size,
                          std::shared_ptr<const Tracer> tracer, std::function<void()> then);

}  // namespace cairn
