// Checksums and digests.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>

namespace cairn {

// CRC-32 as zip, gzip and PNG use it (reflected polynomial 0xEDB88320). `crc` is the value of what came before, 0 at the start.
std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) noexcept;

// The CRC-32 of A followed by B, from the CRC-32 of each and the length of B. O(log length).
std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) noexcept;

// SHA-256: identity of plans, options and byte values across ranks.
using Digest = std::array<std::uint8_t, 32>;
Digest sha256(ByteSpan bytes);
std::string to_hex(const Digest& digest);

// Feeds SHA-256 with a canonical encoding: integers are little-endian and of fixed width, texts are preceded by their length.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;

  DigestBuilder& add(std::uint64_t value);
  DigestBuilder& add(std::int64_t value) { return add(static_cast<std::uint64_t>(value)); }
  DigestBuilder& add(ByteSpan text);
  Digest finish();

 private:
  void* context_;
};

}  // namespace cairn
