// What state machines are given, to Protobuf and back (messages/decision.proto), and what they decide, in words. Internal.
#pragma once

#include <string>
#include <vector>

#include <decision.pb.h>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/recording/plan_digests.hpp>

namespace cairn::recording {

// "Join", "HookDone", "timer: the ranks' answers". Lives for ever.
const char* name_of(const protocol::Event& event) noexcept;
// The other rank that it is about, -1: none.
int peer_of(const protocol::Event& event) noexcept;
// Comes again and again, and decides nothing.
bool is_of_progress(const protocol::Event& event) noexcept;

// Throws Error where something in it is beyond the bounds of the codec (messages/codec.hpp).
void to_proto(const protocol::Event& event, v1::MachineEvent& message);
// Throws kCorrupt. Of plans whose user data was left out, adds the digests to `digests`, and names all plans as a machine does that has
// computed theirs again.
protocol::Event from_proto(const v1::MachineEvent& message, PlanDigests& digests);

// Each effect in words, with a digest of what it holds: equal for equal effects. Never throws but for want of memory.
std::vector<std::string> in_words(const protocol::Effects& effects, const PlanDigests& digests);

// Of an event and the effects it had, without allocating anything: who, what kind, to whom; of texts and plans nothing.
std::uint64_t digest_of(const protocol::Event& event, const protocol::Effects& effects) noexcept;

}  // namespace cairn::recording
