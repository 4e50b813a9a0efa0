// The record of torch_checkpointing (Meta), metadata.pkl: how the tensors of its checkpoint are
// sharded, and which files hold them. A checkpoint is a directory. Each top-level key of the state
// is an item, of which each rank writes a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

enum class ItemFormat : std::uint8_t { kTorch = 1, kJson, kRaw, kSafetensors };

// The file that one rank wrote for one item.
struct ItemFile {
  std::string item;
  int rank = 0;
  std::string path;  // relative to the checkpoint
  ItemFormat format = ItemFormat::kTorch;
};

// A tensor that the record declares. Its name begins with the item.
struct DeclaredTensor {
  std::string fqn;
  TensorStorageMetadata stored;      // without `storage`
  std::vector<std::uint32_t> files;  // by chunk: an index into ItemsRecord::files, of the lowest rank that holds it
};

struct ItemsRecord {
  int world_size = 0;
  std::string version;
  std::vector<DeclaredTensor> tensors;
  std::vector<ItemFile> files;
};

// Decodes a record of version 1.0 or 2.0. Executes nothing: the record consists of plain values.
// Error texts start with `what`. Throws kCorrupt, and kUnsupported for another version, another
// kind of sharding than a DTensor's, another placement than Shard and Replicate, an unknown
// serialization, and for a tensor of which ranks have declared different sizes or types.
ItemsRecord decode_items_record(ByteSpan bytes, const std::string& what);

}  // namespace cairn
