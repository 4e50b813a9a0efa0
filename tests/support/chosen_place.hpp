// Lets the tests of behaviours run over any store.
#pragma once

#include <cstdlib>
#include <string>

namespace cairn::testing {

// Returns the URL in CAIRN_TEST_PLACE, where nothing is saved yet; without one, `otherwise`.
inline std::string chosen_place(const std::string& otherwise = "") {
  const char* const place = std::getenv("CAIRN_TEST_PLACE");
  return place != nullptr ? place : otherwise;
}

}  // namespace cairn::testing
