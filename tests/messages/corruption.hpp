// Random contents for codecs, and ways to corrupt their output.
#pragma once

#include <cairn/tests/support/plain.hpp>

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/tests/support/stride.hpp>

namespace cairn::testing {

// Arbitrary bytes, not only valid UTF-8.
inline std::string random_text(Random& random, std::size_t most) {
  std::string text(random.next() % (most + 1), '\0');
  for (char& c : text) c = random.next() % 4 == 0 ? static_cast<char>(random.next()) : "abc."[random.next() % 4];
  return text;
}

inline Extents random_extents(Random& random, std::size_t dims, std::uint64_t most) {
  Extents extents = Extents::filled(dims, 0);
  for (std::int64_t& value : extents) value = static_cast<std::int64_t>(random.next() % (most + 1));
  return extents;
}

template <class Call>
bool is_corrupt(Call call, const std::string& reason) {
  try {
    call();
  } catch (const Error& error) {
    const bool as_expected = error.code() == ErrorCode::kCorrupt && std::string(error.what()).find(reason) != std::string::npos;
    if (!as_expected) MESSAGE("refused with: ", error.what());
    return as_expected;
  }
  MESSAGE("was not refused");
  return false;
}

// Calls `use` with corrupted bytes: it may succeed, or refuse them as corrupt.
template <class Use>
void use_spoilt(const Bytes& bytes, Use use) {
  try {
    use(bytes);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCorrupt);
  }
}

template <class Use>
void each_truncation(const Bytes& bytes, Use use) {
  for (std::size_t size = 0; size < bytes.size(); size += kStride) use_spoilt(bytes.substr(0, size), use);
}

template <class Use>
void each_flip(const Bytes& bytes, Use use) {
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += kStride) {
    Bytes spoilt = bytes;
    spoilt[bit / 8] = static_cast<char>(spoilt[bit / 8] ^ (1 << (bit % 8)));
    use_spoilt(spoilt, use);
  }
}

}  // namespace cairn::testing
