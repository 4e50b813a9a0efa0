// Plans: what one rank writes or reads in one attempt. Plain records; names are ids into the plan's own table.
//
// After DCP's SavePlan, WriteItem, LoadPlan, ReadItem. Sizes and offsets are in elements, one entry per dimension, unless a name
// ends in _bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

using NameId = std::uint32_t;

// The flattened names (FQNs) of one plan; ids count from 0 in the order of first use.
class NameTable {
 public:
  NameId intern(std::string_view name);
  std::optional<NameId> find(std::string_view name) const;
  const std::string& operator[](NameId id) const { return names_[id]; }  // `id` < size()
  std::size_t size() const { return names_.size(); }
  const std::vector<std::string>& all() const { return names_; }
  // Throws kAlreadyExists if another id has `name`, kInvalidArgument if there is no `id`.
  void rename(NameId id, std::string name);
  void reserve(std::size_t names);

 private:
  // An open hash table of ids: a plan has thousands of names and a coordinator a plan per rank, so a node per name would cost more
  // than all the rest of planning.
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t id_plus_1 = 0;  // 0: free
  };
  std::size_t slot_of(std::string_view name, std::uint32_t hash) const;  // where it is or would be
  void grow(std::size_t slots);

  std::vector<std::string> names_;
  std::vector<Slot> slots_;  // a power of two, at most half of them used
};

// DCP's MetadataIndex: a value, or one chunk of a tensor, found by where it begins.
struct MetadataIndex {
  std::string fqn;
  std::optional<Extents> offset;
};

enum class WriteItemType : std::uint8_t {
  kByteIO = 1,  // a bytes object
  kTensor,      // a plain tensor, whole
  kShard,       // a part of a global tensor
};

struct WriteItem {
  NameId name = 0;
  WriteItemType type = WriteItemType::kByteIO;
  // Tensors and shards only:
  TensorProperties properties;
  Extents size;  // of the global tensor
  Box chunk;     // what this item holds, within `size`
  // Bytes objects only: identity of the value, to compare ranks by. Stays out of the plan digest, as does the length.
  std::uint64_t content_hash = 0;
  std::uint64_t content_bytes = 0;
  // Bytes objects and tensors: ranks may differ under this key on purpose (see state's per_rank).
  bool per_rank = false;

  std::uint64_t payload_bytes() const;  // elements times element size; content_bytes for bytes objects
};

struct SavePlan {
  NameTable names;
  std::vector<WriteItem> items;  // order of the plan = order in the file
  // How flattened names nest (id, path); DCP's planner_data.
  std::vector<std::pair<NameId, Path>> mappings;
  // Free for user-defined planners and writers; carried through the protocol, never interpreted.
  std::string planner_data;
  std::string storage_data;
};

enum class LoadItemType : std::uint8_t { kByteIO = 1, kTensor };

struct ReadItem {
  LoadItemType type = LoadItemType::kTensor;
  NameId dest_name = 0;           // in the state dict being loaded
  NameId storage_name = 0;        // in the checkpoint; the same unless a planner renames
  Extents dest_chunk_offset;      // begins the local chunk that is filled, within the global tensor
  Extents dest_offsets;           // within that local chunk
  Extents storage_chunk_offset;   // begins the stored chunk, within the global tensor
  Extents storage_offsets;        // within that stored chunk
  Extents lengths;                // of the part to copy
  std::uint32_t storage_chunk = 0;  // index of the stored chunk in its TensorStorageMetadata
};

struct LoadPlan {
  NameTable names;
  std::vector<ReadItem> items;
  std::string planner_data;
  std::string storage_data;
};

// Identity of a plan: names, types, shapes, dtypes, boxes and user data in a canonical encoding. Not the content of bytes objects.
Digest plan_digest(const SavePlan& plan);
Digest plan_digest(const LoadPlan& plan);

// --- what a writer reports ------------------------------------------------------------------------------------------------

// One file that a rank wrote.
struct FileResult {
  std::string name;                     // object name relative to the checkpoint
  std::uint64_t length_bytes = 0;
  std::uint32_t crc32 = 0;              // over all bytes
  std::uint32_t trailer_length_bytes = 0;
  std::vector<std::uint64_t> bytes_item_lengths;  // of the bytes objects in it, in the order of the plan: tensors' lengths follow from the plan
};

// One item, where a user-defined writer reports items (DCP's WriteResult).
struct WriteResult {
  MetadataIndex index;
  std::uint64_t size_bytes = 0;
  std::string relative_path;
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::string user_data;  // typed envelope for whatever the writer wants in Metadata::user_storage_data
};

struct WriteResults {
  std::vector<FileResult> files;
  std::vector<WriteResult> items;
};

}  // namespace cairn
