// Characters in UTF-8. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn {

enum class Surrogates { kRefused, kAllowed };  // U+D800 to U+DFFF: no characters, though Python keeps undecodable bytes in them

// How many bytes the character that `text` begins with takes, 1 to 4. 0: it begins with none, as it is empty, or with something cut off,
// in a longer form than needed, or beyond U+10FFFF.
std::size_t utf8_character_bytes(std::string_view text, Surrogates surrogates = Surrogates::kRefused) noexcept;

// Whether `text` is nothing but such characters.
bool is_utf8(std::string_view text) noexcept;

// `text` for people: bytes that are no UTF-8, and control characters, which terminals obey, are shown as \xNN.
std::string printable_utf8(std::string_view text);

}  // namespace cairn
