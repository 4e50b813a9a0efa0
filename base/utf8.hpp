// Functions for UTF-8 text. They have no side effects and are thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn {

enum class Surrogates { kRefused, kAllowed };  // U+D800 to U+DFFF are not characters, but Python stores undecodable bytes in them

// Returns the size in bytes, 1 to 4, of the first character in `text`. Returns 0 if `text` is empty
// or starts with an invalid byte, a truncated or overlong sequence, or a character beyond U+10FFFF.
// Returns 0 for a surrogate unless `surrogates` is kAllowed.
std::size_t utf8_character_bytes(std::string_view text, Surrogates surrogates = Surrogates::kRefused) noexcept;

// Returns whether `text` consists only of valid UTF-8 characters, and of surrogates if allowed.
bool is_utf8(std::string_view text, Surrogates surrogates = Surrogates::kRefused) noexcept;

// Returns `text` in a form that is safe to display: invalid bytes and control characters, which
// would affect a terminal, become \xNN.
std::string printable_utf8(std::string_view text);

}  // namespace cairn
