// Encodes the events of state machines as Protobuf (messages/decision.proto) and back, and
// describes their effects as text. Internal.
#pragma once

#include <string>
#include <vector>

#include <cairn/actors/protocol/events.hpp>
#include <cairn/actors/recording/plan_digests.hpp>
#include <cairn/messages/decision.pb.h>

namespace cairn::recording {

// Returns the name of an event: "Join", "HookDone", "timer: the ranks' answers". Lives forever.
const char* name_of(const protocol::Event& event) noexcept;
// Returns the other rank that the event is about; -1: none.
int peer_of(const protocol::Event& event) noexcept;
// Returns whether the event only concerns progress. Such events are frequent and decide nothing.
bool is_of_progress(const protocol::Event& event) noexcept;

// Throws Error if the event exceeds a limit of the codec (messages/codec.hpp).
void to_proto(const protocol::Event& event, v1::MachineEvent& message);
// Throws kCorrupt. Where user data was left out of plans, adds their digests to `digests`. Digests
// in the event are replaced by those that a machine computes in the replay.
protocol::Event from_proto(const v1::MachineEvent& message, PlanDigests& digests);

// Describes each effect, with a digest of its contents. Equal effects give equal texts. Throws only
// if memory runs out.
std::vector<std::string> in_words(const protocol::Effects& effects, const PlanDigests& digests);

// Returns a digest of an event and its effects, without allocating. It covers kinds and ranks, but
// not texts and plans.
std::uint64_t digest_of(const protocol::Event& event, const protocol::Effects& effects) noexcept;

}  // namespace cairn::recording
