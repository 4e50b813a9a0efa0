// Fuzz targets: one function for each decoder of untrusted bytes, to be called with any input.
//
// A function returns whether it accepted its input. It rejects with kCorrupt or kUnsupported.
// Anything else is a fault: another exception, a crash, a leak, or memory out of proportion to the
// input. FuzzFault reports that something was accepted which cannot be right.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/error.hpp>

namespace cairn::testing {

class FuzzFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct FuzzTarget {
  std::string name;
  bool (*run)(ByteSpan input) = nullptr;  // returns whether the input was accepted
  // The inputs to begin with. They are sound, so that mutations get past the first check.
  std::vector<Bytes> (*seeds)() = nullptr;
};

// All targets, from format_targets.cpp, message_targets.cpp and trace_targets.cpp.
const std::vector<FuzzTarget>& fuzz_targets();
std::vector<FuzzTarget> format_targets();
std::vector<FuzzTarget> message_targets();
std::vector<FuzzTarget> trace_targets();

// Returns true if `use` succeeded, or false if it rejected its input. Rethrows any other error.
template <class Use>
bool goes_through(Use use) {
  try {
    use();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
}

// Decodes and encodes `input`. Throws FuzzFault if a second decode and encode changes the bytes.
template <class Encode, class Decode>
bool makes_round_trip(ByteSpan input, Encode encode, Decode decode) {
  Bytes encoded;
  if (!goes_through([&] { encoded = encode(decode(input)); })) return false;
  if (encode(decode(encoded)) != encoded) throw FuzzFault("what was decoded does not survive a second journey");
  return true;
}

}  // namespace cairn::testing
