// Metadata in the pickle format of PyTorch's torch.distributed.checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// Returns the pickle (protocol 4) that `pickle.load` turns into a
// torch.distributed.checkpoint.metadata.Metadata. The pickle has only what PyTorch's class can
// hold: names, tensors, chunks, locations, paths, the checkpoint id, and `save_id` as the save id.
// `metadata` must be consistent (encode_metadata checks that). Throws kInvalidArgument for names
// that are not UTF-8.
Bytes pickle_torch_metadata(const Metadata& metadata, const std::string& save_id);

// Such a pickle, in which the names of files, the checkpoint id and the save id can be replaced.
// The rest is the same in all saves of one plan, and takes a microsecond for each item to make
// anew. In the pickle, these texts are objects of their own, so that no key is replaced with an
// equal text.
class TorchPickle {
 public:
  TorchPickle() = default;
  TorchPickle(const Metadata& metadata, const std::string& save_id);  // throws as pickle_torch_metadata does
  // Appends the pickle of metadata that differ in these texts alone. Of `metadata`, uses only them.
  void append_to(Bytes& out, const Metadata& metadata, const std::string& save_id) const;
  std::size_t size() const { return bytes_.size(); }

 private:
  struct Text {
    std::size_t begin, end;  // in bytes_
    std::size_t what;        // the index of a file, or one of these
  };
  static constexpr std::size_t kCheckpointId = ~std::size_t{0}, kSaveId = kCheckpointId - 1;

  friend class MetadataPickler;
  Bytes bytes_;
  std::vector<Text> texts_;  // in their order
};

struct TorchMetadata {
  Metadata metadata;                 // without `commit`
  std::uint64_t consumed_bytes = 0;  // length of the pickle
};

// Reads such a pickle, including those of older PyTorch versions. `what` begins error texts. Throws
// kCorrupt, kUnsupported.
TorchMetadata unpickle_torch_metadata(ByteSpan pickle, const std::string& what);

}  // namespace cairn
