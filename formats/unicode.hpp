// UTF-8 as used in Python's pickles.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// Appends one character, at most 0x10ffff.
void append_utf8(std::string& text, std::uint32_t character);

// Converts a str to Latin-1; returns false if it has a character above 255. Pickle protocol 2
// stores Python bytes as a str of characters up to 255.
bool latin1_of_utf8(std::string_view text, std::string& bytes);

// Returns at most 200 bytes of `text`, with '?' for everything outside printable ASCII. Makes names
// from untrusted input safe for error texts.
std::string printable(std::string_view text);

}  // namespace cairn
