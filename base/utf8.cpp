#include <cairn/base/utf8.hpp>

namespace cairn {

std::size_t utf8_character_bytes(std::string_view text, Surrogates surrogates) noexcept {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;  // a continuation byte, an overlong form, or beyond U+10FFFF
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // The limits of the second byte are those of table 3-7 in the Unicode standard.
  const unsigned char second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second > 0x9F && surrogates == Surrogates::kRefused;
  const bool beyond = lead == 0xF4 && second > 0x8F;
  return overlong || surrogate || beyond ? 0 : bytes;
}

bool is_utf8(std::string_view text, Surrogates surrogates) noexcept {
  while (!text.empty()) {
    const bool is_ascii = static_cast<unsigned char>(text[0]) < 0x80;  // most are: spares the call
    const std::size_t length = is_ascii ? 1 : utf8_character_bytes(text, surrogates);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable_utf8(std::string_view text) {
  std::string shown;
  const auto escape = [&](char byte) {
    constexpr char kDigits[] = "0123456789abcdef";
    shown += {'\\', 'x', kDigits[static_cast<unsigned char>(byte) >> 4], kDigits[static_cast<unsigned char>(byte) & 0xF]};
  };
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = utf8_character_bytes(text);
    // The control characters: C0, DEL, and C1, which is C2 80 to C2 9F.
    const bool control =
        first < 0x20 || first == 0x7F || (first == 0xC2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xA0);
    // An invalid byte is escaped alone: the next byte may begin a character.
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length == 0 || control)
      for (const char byte : character) escape(byte);
    else
      shown += character;
    text.remove_prefix(character.size());
  }
  return shown;
}

}  // namespace cairn
