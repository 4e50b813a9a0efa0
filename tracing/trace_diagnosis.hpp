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

// Returns the hooks of planners and storage among `events` of one rank. Finished hooks come first,
// each with its end (kOperation). Unfinished hooks follow, each with its beginning (kBegan). Both
// are in the order of the events.
std::vector<const ObservedEvent*> hook_events(const std::vector<ObservedEvent>& events);

// Returns whether a rank ends its part in a phase with a message of this kind.
bool is_answer(MessageKind kind);

}  // namespace cairn
