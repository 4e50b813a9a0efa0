// The names of enumerators, as tables. Internal.
#pragma once

#include <cstddef>

namespace cairn {

// Returns the name of a value of an enumeration that counts from 1 to `kLast`. `names` lists the
// names in the order of declaration. Returns `unknown` for any number outside of that range.
template <auto kLast, std::size_t kCount>
const char* name_in(const char* const (&names)[kCount], decltype(kLast) value, const char* unknown) noexcept {
  static_assert(kCount == static_cast<std::size_t>(kLast), "each value needs a name");
  const std::size_t index = static_cast<std::size_t>(value) - 1;
  return index < kCount ? names[index] : unknown;
}

}  // namespace cairn
