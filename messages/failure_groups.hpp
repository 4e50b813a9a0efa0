// Groups the failures of many ranks by cause, so that each cause is stored and sent once. A
// thousand ranks often fail for one reason, with one text.
#pragma once

#include <cstddef>
#include <vector>

#include <cairn/base/failure.hpp>

namespace cairn {

// Limits on the texts and types in the result of `grouped`, in bytes. If they exceed a limit, the
// longest ones are cut, all to the same length.
inline constexpr std::size_t kGroupedTextMax = 1u << 20;     // of all causes together
inline constexpr std::size_t kUngroupedTextMax = 64u << 20;  // of all failures together, after `ungrouped`
inline constexpr std::size_t kCutTextLeast = 64;             // kGroupedTextMax cuts no text below this length

// Groups `failures`. Groups are in the order of their lowest ranks. Drops the exceptions.
std::vector<FailureGroup> grouped(const FailureMap& failures);

// Returns one failure for each member.
FailureMap ungrouped(const std::vector<FailureGroup>& groups);

}  // namespace cairn
