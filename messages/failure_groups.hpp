// The failures of many ranks, with each cause stored once: a thousand ranks often fail for one reason, with one text. Failures
// are kept and sent in this form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cairn/base/failure.hpp>

namespace cairn::protocol {

// Ranks whose failures differ only in rank and trace position.
struct FailureGroup {
  struct Member {
    int rank = 0;
    std::uint64_t trace_position = 0;
  };
  Failure cause;                // without rank, trace position and exception
  std::vector<Member> members;  // by rank
};

// Bounds of what `grouped` returns. If texts exceed them, the longest are cut, all to the same length.
inline constexpr std::size_t kGroupedTextMax = 1u << 20;    // of all causes together; each keeps at least kCutTextLeast
inline constexpr std::size_t kUngroupedTextMax = 64u << 20;  // of all ranks, each with its own copy; of their types as well
inline constexpr std::size_t kCutTextLeast = 64;

// Groups `failures`, in the order of each group's lowest rank. Drops the exceptions.
std::vector<FailureGroup> grouped(const FailureMap& failures);

// Returns one failure for each member.
FailureMap ungrouped(const std::vector<FailureGroup>& groups);

}  // namespace cairn::protocol
