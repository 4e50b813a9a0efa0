// Converts a LinkDown to a PeerDown, the event that state machines receive.
#pragma once

#include <cairn/actors/links/links.hpp>
#include <cairn/actors/protocol/events.hpp>

namespace cairn {

protocol::PeerDown peer_down_of(const LinkDown& down);

}  // namespace cairn
