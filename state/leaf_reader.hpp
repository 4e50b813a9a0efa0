// Reads what torch.save wrote of one value, whoever wrote it.
#pragma once

#include <functional>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

// Python's values become:
//   None, bool, int, float, complex, str, torch.device   the IValue of that kind
//   tuple, torch.Size                                     an IValue tuple
//   list                                                  an IValue list, typed if all elements are of one type; a List if it is
//   empty, or
//                                                         if a tensor, dict or bytes is in it (or in a list in it)
//   dict, OrderedDict                                     a Dict, keys as text; within tuples an IValue dict
//   bytes, bytearray, io.BytesIO                          a Blob
//   Tensor, Parameter                                     a tensor on the CPU
//   torch.dtype                                           an IValue int, LibTorch's number for it
// All else is kUnsupported, naming the class. kCorrupt if the archive is damaged. Never executes anything.
Value read_leaf(ByteSpan archive);

// The same of an archive that is not in memory, such as a whole state dict. Tensors are views of what `load_storage` gives: all elements of the
// storage of that key, flat, of the type asked for. Without it storages are read as they are needed, and their CRC-32 is checked; so are
// always those that are stored conjugated or negated.
using LoadStorage = std::function<torch::Tensor(const std::string& key, at::ScalarType type)>;
Value read_saved_value(const TorchArchive& archive, std::uint64_t archive_bytes, const LoadStorage& load_storage = {});

}  // namespace cairn
