// Transforms without encryption, for links over loopback and in trusted networks.
#pragma once

#include <cairn/actors/links/socket.hpp>
#include <cairn/actors/links/transform.hpp>

namespace cairn {

// Makes transforms that pass bytes unchanged. Their `receive` throws kPermission if the other side
// speaks TLS.
TransformFactory plain_transform();

// Throws kPrecondition unless the address is a loopback address. The text says what to do.
void check_loopback(const Endpoint& endpoint);

}  // namespace cairn
