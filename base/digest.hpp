// Checksums and digests.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Returns the CRC-32 that zip, gzip and PNG use (reflected polynomial 0xEDB88320). `crc` is the
// CRC-32 of the preceding bytes; pass 0 at the start.
std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) noexcept;

// Returns the CRC-32 of A followed by B, given the CRC-32 of each and the length of B. O(log
// length).
std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) noexcept;

// A SHA-256 value. Ranks compare digests of plans, of options and of values that are saved as
// bytes.
using Digest = std::array<std::uint8_t, 32>;
Digest sha256(ByteSpan bytes);
std::string to_hex(const Digest& digest);

// Returns the 64-bit XXH3 hash, at the speed of memory. Tells values that differ by accident: two
// of them have one hash with a probability of 2^-64. No defence against hostile data.
std::uint64_t xxh3(ByteSpan bytes) noexcept;
// Returns the 128-bit XXH3 hash, its low half first. No defence against hostile data either.
using Digest128 = std::array<std::uint64_t, 2>;
Digest128 xxh3_128(ByteSpan bytes) noexcept;

// Computes the SHA-256 of a canonical encoding: integers are little-endian with fixed width, and
// the length of a text precedes the text.
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
