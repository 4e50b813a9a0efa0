#include <cairn/formats/unicode.hpp>

namespace cairn {
namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

// Surrogates are written like other characters, as Python does with "surrogatepass".
void append_utf8(std::string& text, std::uint32_t character) {
  const auto tail = [&](int shift) { text.push_back(static_cast<char>(0x80 | ((character >> shift) & 0x3f))); };
  if (character < 0x80) {
    text.push_back(static_cast<char>(character));
  } else if (character < 0x800) {
    text.push_back(static_cast<char>(0xc0 | character >> 6));
    tail(0);
  } else if (character < 0x10000) {
    text.push_back(static_cast<char>(0xe0 | character >> 12));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xf0 | character >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool latin1_of_utf8(std::string_view text, std::string& bytes) {
  bytes.clear();
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes.push_back(text[i]);
    // Characters 0x80 to 0xff have these two lead bytes.
    } else if ((lead == 0xc2 || lead == 0xc3) && i + 1 < text.size() && is_continuation(text[i + 1])) {
      bytes.push_back(static_cast<char>((lead & 0x03) << 6 | (static_cast<unsigned char>(text[i + 1]) & 0x3f)));
      ++i;
    } else {
      return false;
    }
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kLengthMax = 200;
  std::string result(text.substr(0, kLengthMax));
  for (auto& byte : result)
    // Names come from untrusted files, and a terminal would obey control characters in them.
    if (byte < 0x20 || byte > 0x7e) byte = '?';
  if (text.size() > kLengthMax) result += "…";
  return result;
}

}  // namespace cairn
