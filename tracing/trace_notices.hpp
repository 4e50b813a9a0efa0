// Finds what looks wrong in a save or load besides its failures: stragglers, clock jumps, lost
// messages. Internal.
#pragma once

#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_findings.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn {

// Returns the most important notices first. `diagnosis` is complete except for its notices.
std::vector<TracedNotice> notices_of(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks,
                                     const Diagnosis& diagnosis);

}  // namespace cairn
