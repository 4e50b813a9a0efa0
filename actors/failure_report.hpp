// What a failed call leaves behind for people: the failure map as text, and the last events of each rank.
//
//   <directory>/failure-<save id>/report.txt                          by whichever rank is first: all would write the same map
//   <directory>/failure-<save id>/rank-00003-1f2e3d4c-001.trace       of each rank that is alive; `cairn trace` reads them
//
// A call that failed before it had a save id: failure-<incarnation>-<checkpointer>-call-<ordinal>, where the ordinal is the rank's own.
#pragma once

#include <memory>
#include <string>

#include <cairn/actors/rank_runtime.hpp>
#include <cairn/actors/trace.hpp>

namespace cairn {

// In one directory. With another one the oldest goes: a directory with such a name, in which there is nothing but what Cairn writes. One
// into which somebody has put something else stays, and does not count.
inline constexpr std::size_t kFailureReportsMax = 16;

struct FailedCall {
  std::string directory;  // of reports: must be there
  std::string checkpoint_id;
  std::string operation;  // "save"
  CallId id;
  Outcome outcome;
};

// Waits for a thread of its own that writes, for 2 s at most: a file system that says nothing keeps nobody. What cannot be written is
// logged, and nothing else.
void write_failure_report(FailedCall call, const std::string& incarnation, int rank, int world_size,
                          std::shared_ptr<const Tracer> tracer) noexcept;

}  // namespace cairn
