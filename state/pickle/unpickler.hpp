// Reads a Python pickle without Python, and without trust: nothing is imported, called or built. What a pickle would do is only
// described, as a tree of plain values.
//
// Understood is what CPython's picklers write at protocols 0 to 5 for values of the kinds in pickle_value.hpp. A class or function
// that is not on the caller's list is refused by name, as are sets, extension codes and out-of-band buffers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/state/pickle/pickle_value.hpp>

namespace cairn {

struct PickleLimits {
  std::uint32_t depth_max = 200;       // of values inside values
  std::uint32_t nodes_max = 1u << 28;  // values in all; a value takes at least one byte of pickle, and at most about 50 here
};

// Unpickles the value at the begin of `bytes`; PickleTree::consumed_bytes tells where it ended. `bytes` must outlive the tree.
//   what      begins error texts: "the metadata of /run/step_1"
//   allowed   the classes and functions that may occur. Names of Python 2 ("__builtin__", "copy_reg") are read as those of
//   Python 3.
// Throws kCorrupt for what is no pickle, kUnsupported for what is one but not of this kind, both with the byte's position. Memory
// and time are in proportion to the pickle's size.
PickleTree unpickle(ByteSpan bytes, std::string what, const std::vector<PickleGlobal>& allowed, const PickleLimits& limits = {});

}  // namespace cairn
