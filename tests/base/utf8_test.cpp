// Tells valid UTF-8 characters from invalid ones.
#include <cstdint>
#include <string>

#include <cairn/base/utf8.hpp>
#include <cairn/tests/support/plain.hpp>

using namespace cairn;

namespace {

// Encodes `code_point` as the Unicode standard defines.
std::string encoded(std::uint32_t code_point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace

TEST_CASE("utf8: every character has its length, and none of its beginnings is one") {
  std::size_t wrong = 0;
  for (std::uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    const std::string text = encoded(code_point);
    const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    wrong += utf8_character_bytes(text) != (is_surrogate ? 0 : text.size());
    wrong += utf8_character_bytes(text, Surrogates::kAllowed) != text.size();
    wrong += utf8_character_bytes(text + "x") != (is_surrogate ? 0 : text.size());
    for (std::size_t length = 0; length < text.size(); ++length) wrong += utf8_character_bytes(text.substr(0, length)) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("utf8: what is no character") {
  for (const char* text : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                           "\xF5\x80\x80\x80", "\xFF", "\xC3x", "\xE2\x82x", "\xF0\x9F\x98x"}) {
    CAPTURE(text);
    CHECK(utf8_character_bytes(text) == 0);
    CHECK(utf8_character_bytes(text, Surrogates::kAllowed) == 0);
  }
}

TEST_CASE("utf8: what people are shown of any text is UTF-8, without control characters") {
  CHECK(is_utf8(""));
  CHECK(is_utf8("step_1 \xC3\xA4\n"));
  CHECK_FALSE(is_utf8("step_1 \xFF"));
  CHECK_FALSE(is_utf8("cut off \xC3"));
  CHECK(printable_utf8("step_1 \xC3\xA4") == "step_1 \xC3\xA4");
  CHECK(printable_utf8("a\xFF\xC3z\n\x1B[0m\x7F\xC2\x9B") == "a\\xff\\xc3z\\x0a\\x1b[0m\\x7f\\xc2\\x9b");
}
