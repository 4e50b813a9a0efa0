// Metadata in the pickle format of PyTorch's torch.distributed.checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// Returns the pickle (protocol 4) that `pickle.load` turns into a
// torch.distributed.checkpoint.metadata.Metadata. The pickle has only what PyTorch's class can
// hold: names, tensors, chunks, locations, paths, the checkpoint id, and `save_id` as the save id.
// `metadata` must be consistent (encode_metadata checks that). Throws kInvalidArgument for names
// that are not UTF-8.
Bytes pickle_torch_metadata(const Metadata& metadata, const std::string& save_id);

struct TorchMetadata {
  Metadata metadata;                 // without `commit`
  std::uint64_t consumed_bytes = 0;  // length of the pickle
};

// Reads such a pickle, including those of older PyTorch versions. `what` begins error texts. Throws
// kCorrupt, kUnsupported.
TorchMetadata unpickle_torch_metadata(ByteSpan pickle, const std::string& what);

}  // namespace cairn
