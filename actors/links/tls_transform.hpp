// TLS 1.3 between ranks, with a key that is derived from the job's secret instead of certificates.
//
// Both sides prove that they know the key, or the handshake fails. It is derived from the secret and the incarnation, so that neither
// another job's key nor one of an earlier life fits. Every handshake adds a Diffie-Hellman exchange of its own: who learns the secret
// later cannot read what was recorded before.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/actors/links/secret.hpp>
#include <cairn/actors/links/transform.hpp>

namespace cairn {

// What one direction of a connection carries before it changes its keys: far below what AES-GCM allows.
inline constexpr std::uint64_t kTlsBytesPerKey = std::uint64_t{16} << 30;

// For the links of `rank`. `secret` is needed for the call only, and not empty. Connections may outlive the factory. Throws
// InternalError if OpenSSL lacks what is needed.
TransformFactory tls_transform(const Secret& secret, const std::string& incarnation, int rank,
                               std::uint64_t bytes_per_key = kTlsBytesPerKey);

// Whether a stream that begins with these bytes, at least one, is TLS: no frame of a first message begins so.
bool looks_like_tls(ByteSpan first_bytes);
// Tells the other side, in TLS's words, that the handshake has failed, so that it need not try again.
void say_tls_failure(Transform::Wire& wire);

}  // namespace cairn
