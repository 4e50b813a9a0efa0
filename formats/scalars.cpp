#include <cairn/formats/scalars.hpp>

#include <charconv>
#include <cstring>

#include <cairn/formats/unicode.hpp>

namespace cairn {

ParsedInt parse_text_int(std::string_view digits) {
  // Python 2 ends a long with this letter, and Python 3 does so in protocol 0.
  if (!digits.empty() && digits.back() == 'L') digits.remove_suffix(1);
  ParsedInt parsed;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  parsed.is_too_large = error == std::errc::result_out_of_range;
  if (error == std::errc() && end == digits.data() + digits.size()) parsed.value = value;
  return parsed;
}

ParsedInt parse_binary_int(std::string_view bytes) {
  const bool is_negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  const unsigned char sign = is_negative ? 0xff : 0;
  // Sign-extended: bytes that the pickle leaves out repeat the sign.
  std::uint64_t bits = is_negative ? ~std::uint64_t{0} : 0;
  ParsedInt parsed;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (i < 8) {
      bits = (bits & ~(std::uint64_t{0xff} << (8 * i))) | std::uint64_t{byte} << (8 * i);
    } else if (byte != sign) {
      parsed.is_too_large = true;
    }
  }
  // With nine bytes or more, bit 63 must still agree with the sign.
  if ((bits >> 63 != 0) != is_negative) parsed.is_too_large = true;
  if (!parsed.is_too_large) parsed.value = static_cast<std::int64_t>(bits);
  return parsed;
}

double parse_binary_float(std::string_view bytes) {
  std::uint64_t bits = 0;
  // Big-endian, unlike all other numbers in pickles.
  for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::optional<std::string> unescape_text(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    // Protocol 0 escapes some characters as \u and hexadecimal digits. Every other byte is a
    // Latin-1 character.
    const bool is_escape = line[i] == '\\' && i + 1 < line.size() && (line[i + 1] == 'u' || line[i + 1] == 'U');
    if (!is_escape) {
      append_utf8(text, static_cast<unsigned char>(line[i]));
      continue;
    }
    const std::size_t digits = line[i + 1] == 'u' ? 4 : 8;
    if (line.size() - i - 2 < digits) return std::nullopt;
    const char* const begin = line.data() + i + 2;
    std::uint32_t character = 0;
    const auto [end, error] = std::from_chars(begin, begin + digits, character, 16);
    if (error != std::errc() || end != begin + digits || character > 0x10ffff) return std::nullopt;
    append_utf8(text, character);
    i += digits + 1;
  }
  return text;
}

}  // namespace cairn
