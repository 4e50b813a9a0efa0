// Writes the report of a failed call: the failure map as text, and the last events of some ranks.
//
//   <directory>/failure-<save id>/report.txt                     by the first rank to report
//   <directory>/failure-<save id>/rank-00003-1f2e3d4c-001.trace  by each rank that reports
//
// `cairn trace` reads these directories. All ranks have the same failure map, so one report.txt is
// enough. A call that failed before its attempt began has no save id. Its directory is
// failure-<incarnation>-<checkpointer>-call-<N>, where N is the call's ordinal on the rank.
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

// The maximum number of reports kept in one directory. If there are as many, a new report replaces
// the oldest. A report directory that contains foreign files is kept, and does not count toward the
// maximum.
inline constexpr std::size_t kFailureReportsMax = 16;

// The maximum number of ranks that `reporting_ranks` returns. In addition, up to this many ranks
// that the map calls silent report, if they are alive after all.
inline constexpr std::size_t kReportingRanksMax = 8;

// Returns the ranks chosen to report. Leaves out lost and silent ranks. Prefers ranks in the map,
// then low ranks. All ranks have the same map, so they agree without communication.
std::set<int> reporting_ranks(const FailureMap& failures, int world_size);
// Returns whether reporting ranks write trace files. False if a failure has the code kNoSpace.
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

// If this rank reports, writes the report on another thread. Call this when a call has failed with
// `outcome` but cannot end yet, because one of its hooks still runs. Later `end_call` replaces the
// trace file with one that also has the events since then, and leaves report.txt as it is.
void report_running_call(const std::shared_ptr<ReportedCall>& call, CallResult outcome) noexcept;

// Ends a call: calls `done` once with `outcome`. First writes the report if this rank reports and
// the call has a failure other than an explicit cancellation. `done` then runs on a new thread,
// which waits at most 2 s for the report, so that a hung file system does not delay `done` longer.
// If there is no report, or memory or threads run out, `done` runs on the calling thread. Errors in
// writing the report are only logged.
void end_call(std::shared_ptr<ReportedCall> call, CallResult outcome);

}  // namespace cairn
