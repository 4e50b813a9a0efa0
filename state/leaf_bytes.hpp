// Reads a single value written by torch.save, from Cairn or from PyTorch. serialize_leaf
// (state/planner.hpp) writes one.
#pragma once

#include <cairn/base/bytes.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

// Converts Python values as follows:
//   None, bool, int, float, complex, str, torch.device   an IValue of that kind
//   tuple, torch.Size               an IValue tuple; `is_torch_size` recognises the latter
//   list                            a List if it is empty, or if it contains a tensor, dict or
//                                   bytes, directly or in an inner list; otherwise an IValue list,
//                                   typed if all elements have one type
//   dict, OrderedDict               a Dict with text keys; inside a tuple, an IValue dict
//   bytes, bytearray, io.BytesIO    a Blob; inside a tuple, what plain_value_of makes of it
//   Tensor, Parameter, Buffer       a tensor on the CPU; also a DTensor with all its elements
//   torch.dtype                     an IValue enum with PyTorch's name of the type (dtype_value)
// A value that is, or contains, anything else is an Opaque as a whole. Throws kUnsupported if the
// values would take more memory than 64 MiB plus 48 times the length of the pickle. Throws kCorrupt
// if the archive is damaged. Never executes code from the archive.
Value read_leaf(ByteSpan archive);

}  // namespace cairn
