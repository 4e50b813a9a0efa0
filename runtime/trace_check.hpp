// Replays recorded traces: gives the shipping state machines the recorded inputs, and compares
// their decisions with the recorded ones.
//
// Needs recordings with contents (CAIRN_TRACE=full:DIR). The rings of failure reports, and streams
// without contents, contain only states and digests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/tracing/trace_directory.hpp>

namespace cairn {

// A decision of a state machine that differs from the recorded one. Later decisions of that machine
// start from a different state, and are not compared.
struct TraceDifference {
  int rank = 0;
  std::string actor;         // "coordinator", "supervisor"
  std::string checkpointer;  // the checkpointer's name
  std::uint64_t attempt = 0;
  std::uint64_t step = 0;   // number of the decision in this machine, from 1
  std::uint64_t event = 0;  // id of the event in the rank's trace
  std::string given;        // the input: "Join from rank 2"
  std::string state;        // the state before the input
  WallTime time;            // on the rank's own clock
  std::string expected;     // the first part of the recorded decision that differs
  std::string got;
};

struct CheckedRank {
  std::string job;  // the incarnation
  int rank = 0;
  std::string cairn_version;  // the version that made the recording
  std::uint64_t machines = 0;
  std::uint64_t decisions = 0;               // compared decisions
  std::vector<TraceDifference> differences;  // the first of each machine, in recording order
  std::vector<std::string> gaps;             // parts that could not be compared, and why
};

struct TraceCheck {
  std::vector<CheckedRank> ranks;     // those with something to compare
  std::vector<std::string> left_out;  // files and ranks of which nothing could be compared, and why

  bool has_compared() const;
  bool agrees() const;                   // no compared decision differs
  const TraceDifference* first() const;  // the earliest difference; null if there is none
};

// Checks all traces of a directory. `job`: the first characters of an incarnation, "" for all.
// Reads one file after another, and keeps the machines of one rank in memory. Throws kUnavailable
// for a file that can no longer be read.
TraceCheck check_traces(const TraceDirectory& directory, const std::string& job = "");

}  // namespace cairn
