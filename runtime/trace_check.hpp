// A trace is a test: has the shipping state machines decide again on everything that those of a job were given, and compares.
//
// That takes recordings with contents (CAIRN_TRACE=full:DIR). The rings of failure reports, and streams without contents, have states and
// digests only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// Where a machine has decided otherwise than the recorded one. Its later decisions follow from another state, and are not compared.
struct TraceDifference {
  int rank = 0;
  std::string actor;         // "coordinator", "supervisor"
  std::string checkpointer;  // its name
  std::uint64_t attempt = 0;
  std::uint64_t step = 0;   // of this machine, from 1
  std::uint64_t event = 0;  // its id in the trace of the rank
  std::string given;        // "Join from rank 2"
  std::string state;        // before
  WallTime time;            // on the rank's own clock
  std::string expected;     // what was recorded: the first part of it that differs
  std::string got;
};

struct CheckedRank {
  std::string job;  // the incarnation
  int rank = 0;
  std::string cairn_version;  // that has recorded it
  std::uint64_t machines = 0;
  std::uint64_t decisions = 0;               // that were compared
  std::vector<TraceDifference> differences;  // of each machine the first one, in the order of the recording
  std::vector<std::string> gaps;             // what could not be compared, and why
};

struct TraceCheck {
  std::vector<CheckedRank> ranks;     // those with something to compare
  std::vector<std::string> left_out;  // files, and ranks, of which nothing could be compared, and why

  bool has_compared() const;
  bool agrees() const;                   // nothing that was compared differs
  const TraceDifference* first() const;  // by time; null: there is none
};

// `job`: the beginning of an incarnation, "" for all. Reads one file after the other; keeps the machines of one rank. Throws kUnavailable for
// a file that cannot be read any more.
TraceCheck check_traces(const TraceDirectory& directory, const std::string& job = "");

}  // namespace cairn
