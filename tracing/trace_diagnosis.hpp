// Summarises a save or load: how it ended, where it failed, which ranks were waited for, how long
// each phase took, and what looks wrong.
#pragma once

#include <vector>

#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_findings.hpp>
#include <cairn/tracing/trace_messages.hpp>

namespace cairn {

// Summarises one save or load. The result points into `trace`.
Diagnosis diagnose(const Trace& trace, const std::vector<TracedMessage>& messages, const TraceClocks& clocks);

// Returns one event for each hook of planners and storage in `events`, which are the events of one
// rank. Finished hooks come first; for each, the event is its end (kOperation). Unfinished hooks
// follow; for each, the event is its beginning (kBegan). Both groups keep the order of `events`.
std::vector<const ObservedEvent*> hook_events(const std::vector<ObservedEvent>& events);

// Returns whether a message of this kind ends a rank's part in a phase.
bool is_answer(MessageKind kind);

}  // namespace cairn
