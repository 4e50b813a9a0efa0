// Plans: what one rank writes or reads in one attempt. Plans are plain structs; they refer to names
// by ids into their own name table.
//
// Modelled on DCP's SavePlan, WriteItem, LoadPlan and ReadItem. Sizes and offsets count elements
// and have one number per dimension. A member whose name ends in _bytes is a single number of
// bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/base/copy_on_write.hpp>
#include <cairn/base/digest.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/name_table.hpp>
#include <cairn/planning/read_once.hpp>

namespace cairn {

// DCP's MetadataIndex: identifies a bytes object by name, or a chunk of a tensor by name and
// offset.
struct MetadataIndex {
  std::string fqn;
  std::optional<Extents> offset;
};

// Packs the text of a value into a WriteItem::content_hash, so that an error can show the value.
// Returns 0 for texts that are empty, longer than seven bytes, or not printable ASCII. Other hashes
// must have a first byte of at least 0x80.
std::uint64_t hash_of_short_text(std::string_view text) noexcept;
// Returns the text in such a hash; "" for other hashes.
std::string short_text_in(std::uint64_t content_hash);

enum class WriteItemType : std::uint8_t {
  kByteIO = 1,  // a bytes object
  kTensor,      // a whole plain tensor
  kShard,       // a part of a global tensor
};

struct WriteItem {
  NameId name = 0;
  WriteItemType type = WriteItemType::kByteIO;
  // Tensors and shards only:
  TensorProperties properties;
  Extents size;  // the size of the global tensor
  Box chunk;     // the part of the global tensor in this item
  // Used to compare the values of ranks. 0 for tensors that are not compared. A bytes object's hash
  // of `hash_of_short_text` is shown as its text. Neither content_hash nor content_bytes is part of
  // the plan digest.
  std::uint64_t content_hash = 0;
  std::uint64_t content_bytes = 0;  // bytes objects only
  // Bytes objects and plain tensors: the value may differ between ranks on purpose (see per_rank in
  // state/state_dict.hpp).
  bool per_rank = false;
  // Tensors and shards: the value seldom changes between saves (see frozen in
  // state/state_dict.hpp), and has its place in a file without values that do.
  bool frozen = false;

  std::uint64_t payload_bytes() const;  // number of elements times element size; content_bytes for bytes objects
};

struct SavePlan {
  NameTable names;
  // Each data file has them in this order, but its tensors before its bytes objects. Copies of the
  // plan share them until one changes them: keep no reference to an item while copying the plan.
  CopyOnWriteVector<WriteItem> items;
  // The path of each flattened name. DCP calls this planner_data; the member of that name below is
  // something else.
  CopyOnWrite<std::vector<std::pair<NameId, Path>>> mappings;
  // Data of user-defined planners and writers. Cairn passes it on and never interprets it.
  std::string planner_data;
  std::string storage_data;
};

// A rank's part of the global plan, as what it takes over from the rank's local plan. Most parts
// are nothing else, and the rank has its local plan.
struct PlanPart {
  struct Run {
    std::uint32_t begin = 0;  // an item of the local plan
    std::uint32_t items = 0;  // how many, from there on
  };
  std::vector<Run> runs;                              // in the order of the part
  std::vector<std::pair<std::uint32_t, Box>> chunks;  // those items of the part that have another chunk; ascending
  bool has_mappings = false;                          // those of the local plan; else none
  std::string planner_data;
  std::string storage_data;
};

// Returns what `part` takes over from `local`; nothing if it has anything of its own. Passes over
// content hashes and sizes, which the rank has.
std::optional<PlanPart> part_of_plan(const SavePlan& local, const SavePlan& part);
// Returns the plan of such a part; nothing if it cannot be one of `local`.
std::optional<SavePlan> plan_of_part(const SavePlan& local, const PlanPart& part);

// Returns whether any tensor of the plan has a content hash.
bool has_tensor_hashes(const SavePlan& plan) noexcept;

enum class LoadItemType : std::uint8_t { kByteIO = 1, kTensor };

struct ReadItem {
  LoadItemType type = LoadItemType::kTensor;
  NameId dest_name = 0;             // the name in the state dict being loaded
  NameId storage_name = 0;          // the name in the checkpoint; equals the name in the state dict unless a planner renames values
  Extents dest_chunk_offset;        // start of the local chunk, within the global tensor
  Extents dest_offsets;             // start of the copied part, within the local chunk
  Extents storage_chunk_offset;     // start of the stored chunk, within the global tensor
  Extents storage_offsets;          // start of the copied part, within the stored chunk
  Extents lengths;                  // sizes of the copied part
  std::uint32_t storage_chunk = 0;  // index of the stored chunk in its TensorStorageMetadata
};

struct LoadPlan {
  NameTable names;
  std::vector<ReadItem> items;
  std::string planner_data;
  std::string storage_data;
  // Between Cairn's own readers: how a rank can share what ranks read, in its local plan, and what
  // it shares, in its global plan. Null: nothing.
  ReadOffer offer;
  std::shared_ptr<const SharedReads> shared;
};

// Returns one line for traces: what ranks share by their global plans.
using LoadPlans = std::vector<std::shared_ptr<const LoadPlan>>;
std::string describe_read_once(const LoadPlans& local, const LoadPlans& global);

// kItems: all but `planner_data` and `storage_data`.
enum class DigestOf : std::uint8_t { kWholePlan = 1, kItems };

// Returns a digest of a plan. It does not cover the order of the name table, or the content hashes
// and sizes of bytes objects. Throws kInvalidArgument if an item or path has an unknown name.
Digest plan_digest(const SavePlan& plan, DigestOf parts = DigestOf::kWholePlan);

// --- results that a writer reports ---------------------------------------------------------------

// One file that a rank wrote.
struct FileResult {
  std::string name;  // object name relative to the checkpoint
  std::uint64_t length_bytes = 0;
  std::uint32_t crc32 = 0;  // covers all bytes of the file
  std::uint32_t trailer_length_bytes = 0;
  std::string written_by = {};  // the save id of the save that wrote the bytes; "": this one, as in FileInfo
  // Lengths of compressed tensors, then of bytes objects, each in the order of the plan. All other
  // lengths follow from the plan.
  std::vector<std::uint64_t> bytes_item_lengths;
};

// The result of writing one item, if a user-defined writer reports items (DCP's WriteResult).
struct WriteResult {
  MetadataIndex index;
  std::uint64_t size_bytes = 0;
  std::string relative_path;
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::string user_data;  // passed unchanged to the writer's `finish`
};

struct WriteResults {
  std::vector<FileResult> files;
  std::vector<WriteResult> items;
};

}  // namespace cairn
