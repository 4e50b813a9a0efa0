// Reads texts that users give: variables of the environment, and numbers. Writes numbers.
#pragma once

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// Returns "" for a variable that is unset.
inline std::string environment_value(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns nothing if `text` is not a number from its first to its last character, or if `Number`
// cannot hold it. Does not depend on the locale, as strtod does.
template <class Number>
std::optional<Number> parse_number(std::string_view text) noexcept {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// Returns the shortest text that parse_number reads as the same number, in any locale.
template <class Number>
std::string number_text(Number value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace cairn
