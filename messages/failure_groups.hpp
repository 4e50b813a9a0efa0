// Groups the failures of many ranks, so that each cause is stored once. A thousand ranks often fail
// for one reason, with one text. Failures are kept and sent in this form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cairn/base/failure.hpp>

namespace cairn::protocol {

// The ranks whose failures differ only in rank and trace position.
struct FailureGroup {
  struct Member {
    int rank = 0;
    std::uint64_t trace_position = 0;
  };
  Failure cause;                // without rank, trace position and exception
  std::vector<Member> members;  // by rank, ascending
};

// Limits on the result of `grouped`. If the texts exceed a limit, the longest texts are cut, all to
// the same length.
inline constexpr std::size_t kGroupedTextMax = 1u << 20;    // bytes of all causes together, at least kCutTextLeast for each text
inline constexpr std::size_t kUngroupedTextMax = 64u << 20;  // bytes of texts and types over all ranks, if each rank has a copy
inline constexpr std::size_t kCutTextLeast = 64;

// Groups `failures`. Groups are in the order of their lowest ranks. Drops the exceptions.
std::vector<FailureGroup> grouped(const FailureMap& failures);

// Returns one failure for each member.
FailureMap ungrouped(const std::vector<FailureGroup>& groups);

}  // namespace cairn::protocol
