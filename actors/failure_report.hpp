// Writes the report of a failed call: the failure map as text, and the last events of some ranks.
//
//   <directory>/failure-<save id>/report.txt                     from the first reporting rank
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

#include <cairn/actors/call.hpp>
#include <cairn/actors/trace.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// The maximum number of reports kept in one directory: a new report removes the oldest. A report
// directory that contains foreign files is kept, and does not count toward the maximum.
inline constexpr std::size_t kFailureReportsMax = 16;

// The maximum number of ranks that report the failure of one call.
inline constexpr std::size_t kReportingRanksMax = 8;

// Returns the ranks that report. Only live ranks report: first those in the map, then the others,
// by rank. All ranks have the same map, so they agree without communication.
std::set<int> reporting_ranks(const FailureMap& failures, int world_size);
// Returns whether ranks write trace files: false if a failure in the map is a full disk.
bool leaves_traces(const FailureMap& failures);

// A running call, and what its report needs. Made when the call begins: when the call ends, memory
// may have run out.
struct ReportedCall {
  std::string directory;  // holds the report; must exist; "": no report
  std::string checkpoint_id;
  std::string operation;  // for example "save"
  CallId id;
  std::string incarnation;
  int rank = 0;
  int world_size = 1;
  std::shared_ptr<const Tracer> tracer;
  std::function<void(Outcome)> done;
  Outcome outcome{};  // set by `end_call`
  Mutex writing;      // held while a report of the call is written
};

// Writes the report of a call that has failed with `outcome`, if this rank reports, while a hook of
// the call still runs and keeps it from ending. Does not wait. `end_call` writes it again, with the
// events since then.
void report_running_call(const std::shared_ptr<ReportedCall>& call, Outcome outcome) noexcept;

// Ends a call: calls `done` once with `outcome`. If the call has failed, was not only cancelled,
// and this rank reports, first writes the report on a thread of its own. Then calls `done` on
// another thread, after 2 s at the latest, so that a hung file system does not delay the caller
// longer. Otherwise, or if memory or threads run out, calls `done` on this thread. Errors of the
// report are only logged.
void end_call(std::shared_ptr<ReportedCall> call, Outcome outcome);

}  // namespace cairn
