// Reads a Python pickle without Python. It does not trust the input: nothing is imported, called or
// constructed. The result only describes what the pickle would do, as a tree of plain values.
//
// It reads everything that CPython's picklers write at protocols 0 to 5 for the kinds of values in
// pickle_value.hpp. A class or function that is not on the caller's list is opaque, as are sets,
// extension codes and ints of more than 64 bits. It refuses out-of-band buffers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/pickle_value.hpp>

namespace cairn {

struct PickleLimits {
  std::uint32_t depth_max = 200;  // the maximum depth of nested values
  // A pickle of n bytes may hold at most nodes_max + n/2 values. Real pickles hold fewer than n/2:
  // a number takes two bytes, a text more, and a commit record has four to seven bytes for each
  // value. A value takes 24 bytes in memory, and about twice that while the tree grows.
  std::uint32_t nodes_max = 1u << 24;
};
inline constexpr PickleLimits kRecordPickleLimits{200, 4096};

enum class OpaqueValues : std::uint8_t { kRefused = 1, kKept };

// Unpickles the value at the start of `bytes`; PickleTree::consumed_bytes says where it ended.
// `bytes` must outlive the tree.
//   what      starts error texts: "the metadata of /run/step_1"
//   allowed   the classes and functions that may occur; a name that ends in '*' allows all names
//             with that prefix; names of Python 2 ("__builtin__", "copy_reg") are read as those of
//             Python 3
//   opaque    kKept: an opaque value is a value of the tree, and no reason to throw
// Throws kCorrupt if the bytes are not a pickle. Throws kUnsupported for anything that is not
// allowed or not supported, and beyond the limits. Both errors give the position in the pickle, in
// bytes. Memory and time are proportional to the pickle's size.
PickleTree unpickle(ByteSpan bytes, std::string what, const std::vector<PickleGlobal>& allowed, const PickleLimits& limits = {},
                    OpaqueValues opaque = OpaqueValues::kRefused);

}  // namespace cairn
