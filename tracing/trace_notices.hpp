// What looks wrong in a save or load, beside its failures: stragglers, clocks that jumped, messages that were lost. Internal.
#pragma once

#include <vector>

#include <cairn/tracing/trace_diagnosis.hpp>

namespace cairn {

// The most important ones first. `diagnosis`: all of it but its notices.
std::vector<TracedNotice> notices_of(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks,
                                     const Diagnosis& diagnosis);

}  // namespace cairn
