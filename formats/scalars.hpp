// Parses the scalar values of pickles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

struct ParsedInt {
  std::optional<std::int64_t> value;
  bool is_too_large = false;  // a number, but wider than 64 bits
};

ParsedInt parse_text_int(std::string_view digits);   // decimal, optionally followed by 'L'
ParsedInt parse_binary_int(std::string_view bytes);  // two's complement, little-endian, any length
double parse_binary_float(std::string_view bytes);  // 8 bytes, big-endian

// Decodes a text of protocol 0: \uXXXX and \UXXXXXXXX stand for characters, other bytes are
// Latin-1. Returns nothing if an escape is malformed.
std::optional<std::string> unescape_text(std::string_view line);

}  // namespace cairn
