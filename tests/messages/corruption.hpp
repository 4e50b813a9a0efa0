// Random contents for codecs, and what they refuse.
#pragma once

#include <cairn/tests/support/plain.hpp>

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/random.hpp>
#include <cairn/planning/box.hpp>

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

}  // namespace cairn::testing
