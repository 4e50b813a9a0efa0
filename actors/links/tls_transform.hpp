// TLS 1.3 between ranks, with a pre-shared key instead of certificates.
//
// The handshake fails unless both sides prove that they know the key. The key is derived from the
// job's secret and `key_context`, such as the incarnation, so keys of other contexts are rejected.
// Every handshake adds a Diffie-Hellman exchange of its own (forward secrecy): a secret that leaks
// later cannot be used to decrypt recorded traffic.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/actors/links/byte_socket.hpp>
#include <cairn/actors/links/secret.hpp>
#include <cairn/actors/links/transform.hpp>

namespace cairn {

// The number of bytes that one direction of a connection sends before it changes its key. The limit
// of AES-GCM is far higher.
inline constexpr std::uint64_t kTlsBytesPerKey = std::uint64_t{16} << 30;

// Makes transforms for the links of `rank`. `secret` must not be empty and is borrowed for the
// call. Connections may outlive the factory. Throws InternalError if OpenSSL lacks a required
// feature.
TransformFactory tls_transform(const Secret& secret, const std::string& key_context, int rank,
                               std::uint64_t bytes_per_key = kTlsBytesPerKey);

// Makes sockets for the data plane of `rank`. Their keys are derived as those of tls_transform, but
// differ. A socket holds less than 1 MiB.
ByteSocketFactory tls_socket(const Secret& secret, const std::string& key_context, int rank,
                             std::uint64_t bytes_per_key = kTlsBytesPerKey);

// Returns whether a stream that begins with `first_bytes` is TLS. `first_bytes` must not be empty.
// The first frame of an unencrypted link never begins this way.
bool looks_like_tls(ByteSpan first_bytes);
// Appends a TLS alert to `wire`. It tells the other side that the handshake has failed, so the
// other side does not retry.
void say_tls_failure(Transform::Wire& wire);

}  // namespace cairn
