// Metadata as PyTorch's torch.distributed.checkpoint pickles it.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// The pickle (protocol 4) that `pickle.load` turns into a torch.distributed.checkpoint.metadata.Metadata. Holds what PyTorch knows
// of: names, tensors, chunks, locations, paths, checkpoint id; `save_id` is what it calls the save. `metadata` must be consistent
// (encode_metadata checks). Throws kInvalidArgument for names that are not UTF-8.
Bytes pickle_torch_metadata(const Metadata& metadata, const std::string& save_id);

struct TorchMetadata {
  Metadata metadata;                 // without `commit`
  std::uint64_t consumed_bytes = 0;  // where the pickle ended
};

// Reads it, and what older versions of PyTorch wrote. `what` begins error texts. Throws kCorrupt, kUnsupported.
TorchMetadata unpickle_torch_metadata(ByteSpan pickle, const std::string& what);

}  // namespace cairn
