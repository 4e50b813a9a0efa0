// Writes the report of a failed call: the failure map as text, and the last events of some ranks.
//
//   <directory>/failure-<save id>/report.txt                     by the first rank to report
//   <directory>/failure-<save id>/rank-00003-1f2e3d4c-001.trace  by each rank that reports
//
// `cairn trace` reads these directories. All ranks have the same failure map, so one report.txt is
// enough. Without a save id, the directory is failure-<incarnation>-<checkpointer>-call-<N>, for
// the N-th call of the checkpointer on the rank.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <cairn/actors/call.hpp>
#include <cairn/actors/trace.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// The maximum number of reports kept in one directory. A new report removes the oldest. A report
// directory that contains foreign files is kept, and does not count toward the maximum.
inline constexpr std::size_t kFailureReportsMax = 16;

// The maximum number of `reporting_ranks`. As many silent ranks report too, if they are alive.
inline constexpr std::size_t kReportingRanksMax = 8;

// Returns the ranks chosen to report. Leaves out lost and silent ranks. Prefers ranks in the map,
// then low ranks. All ranks have the same map, so they agree without communication.
std::set<int> reporting_ranks(const FailureMap& failures, int world_size);
// Returns whether ranks write trace files: not if one of the failures is a full disk.
bool leaves_traces(const FailureMap& failures);

// A running call and the data that its report needs. It is made when the call begins, because
// memory may have run out when the call ends.
struct ReportedCall {
  std::string directory;  // holds the report; must exist; "": no report
  std::string checkpoint_id;
  std::string operation;  // for example "save"
  CallId id;
  std::string incarnation;
  int rank = 0;
  int world_size = 1;
  std::shared_ptr<const Tracer> tracer;
  std::function<void(CallResult)> done;
  CallResult outcome{};  // set by `end_call`
  Mutex writing;      // held while a report of the call is written
};

// Writes the report if this rank reports. Call this when a call has failed with `outcome` but
// cannot end, because one of its hooks still runs. Does not wait. `end_call` later writes the trace
// file again, with the events since then. It leaves report.txt as it is.
void report_running_call(const std::shared_ptr<ReportedCall>& call, CallResult outcome) noexcept;

// Ends a call: calls `done` once with `outcome`. If this rank reports, and the call has a failure
// other than an explicit cancellation, first writes the report. `done` then runs on a thread of its
// own, which waits at most 2 s for the report, so that a hung file system does not delay the caller
// longer. Without a report, or if memory or threads run out, `done` runs on the calling thread.
// Errors of the report are only logged.
void end_call(std::shared_ptr<ReportedCall> call, CallResult outcome);

}  // namespace cairn
