// UTF-8 as Python's pickles hold it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// Whether `text` is UTF-8 in its shortest form. Lone surrogates pass: Python keeps undecodable parts of file names in them.
bool is_python_utf8(std::string_view text) noexcept;

// Appends one character, at most 0x10ffff.
void append_utf8(std::string& text, std::uint32_t character);

// The bytes of a str whose characters are all below 256 (Latin-1); false if one is not. How protocol 2 keeps bytes.
bool latin1_of_utf8(std::string_view text, std::string& bytes);

// At most 200 bytes, everything outside printable ASCII replaced by '?': names out of hostile input, for error texts.
std::string printable(std::string_view text);

}  // namespace cairn
