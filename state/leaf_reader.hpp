// Reads a single value written by torch.save, from Cairn or from PyTorch.
#pragma once

#include <functional>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {

// Converts Python values as follows:
//   None, bool, int, float, complex, str, torch.device   an IValue of that kind
//   tuple, torch.Size               an IValue tuple
//   list                            a List if it is empty, or if it contains a tensor, dict or
//                                   bytes, directly or in an inner list; otherwise an IValue list,
//                                   typed if all elements have one type
//   dict, OrderedDict               a Dict with text keys; in tuples an IValue dict
//   bytes, bytearray, io.BytesIO    a Blob
//   Tensor, Parameter               a tensor on the CPU
//   torch.dtype                     an IValue enum with PyTorch's name of the type (dtype_value)
// Throws kUnsupported, naming the class, for anything else, and if the values would take more than
// 64 MiB + 48 times the length of the pickle. Throws kCorrupt if the archive is damaged. Never
// executes anything.
Value read_leaf(ByteSpan archive);

// Reads a whole state dict from an archive that need not be in memory. `load_storage` must return
// the storage for a key as a flat tensor of the given type with all elements; the dict's tensors
// are views of it. Storages of conjugated or negated tensors are read from the archive, and their
// CRC-32 is checked. A tensor of a type that LibTorch lacks is returned in its carrier type
// (carrier_type_of) and listed in `carried`. A tensor of a type that DType lacks is on the meta
// device, and also listed in `carried`. Also throws kUnsupported, before it converts anything, if
// the saved value is not a dict.
using LoadStorage = std::function<torch::Tensor(const std::string& key, at::ScalarType type)>;
Dict read_saved_dict(const TorchArchive& archive, const LoadStorage& load_storage, CarriedTypes& carried);

}  // namespace cairn
