// What takes bytes that nobody vouches for: one function each, which a fuzzer may call with anything.
//
// A function returns whether it took its input; it refuses with kCorrupt or kUnsupported. Whatever else it does is a fault: another
// exception, which FuzzFault stands for where something was taken that cannot be right; a crash, a leak, memory out of proportion.
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
  bool (*run)(ByteSpan input) = nullptr;  // whether the input was taken
  // What to begin with: sound inputs, so that what is made of them gets past the first check.
  std::vector<Bytes> (*seeds)() = nullptr;
};

// All of them: format_targets.cpp, message_targets.cpp, trace_targets.cpp.
const std::vector<FuzzTarget>& fuzz_targets();
std::vector<FuzzTarget> format_targets();
std::vector<FuzzTarget> message_targets();
std::vector<FuzzTarget> trace_targets();

// Whether `use` went through; false if it refused what it was given.
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

// What was decoded must encode, and that must decode to the same again.
template <class Encode, class Decode>
bool makes_round_trip(ByteSpan input, Encode encode, Decode decode) {
  Bytes encoded;
  if (!goes_through([&] { encoded = encode(decode(input)); })) return false;
  if (encode(decode(encoded)) != encoded) throw FuzzFault("what was decoded does not survive a second journey");
  return true;
}

}  // namespace cairn::testing
