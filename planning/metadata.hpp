// The contents of a checkpoint: the in-memory form of `.metadata`, whether Cairn or PyTorch wrote
// it. Modelled on DCP's `Metadata`.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/planning/name_list.hpp>
#include <cairn/planning/name_table.hpp>

namespace cairn {

enum class MemoryFormat : std::uint8_t { kContiguous = 0, kChannelsLast = 1, kPreserve = 2 };  // PyTorch's numbers

struct TensorProperties {
  DType dtype = DType::kFloat32;
  bool requires_grad = false;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  bool pin_memory = false;

  friend bool operator==(const TensorProperties& a, const TensorProperties& b) {
    return a.dtype == b.dtype && a.requires_grad == b.requires_grad && a.memory_format == b.memory_format &&
           a.pin_memory == b.pin_memory;
  }
};

// The location of one chunk or bytes object. `file` is an index into Metadata::files. The bytes
// [offset, offset + length) are a torch.save archive or a bytes object, encoded by `transforms`.
struct StorageInfo {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;          // bytes from the start of the file
  std::uint64_t length = 0;          // bytes
  // Bytes from the file's start to the raw elements. 0 means either that the offset becomes known
  // only when the archive is read, or that the file contains no raw elements.
  std::uint64_t payload_offset = 0;
  std::vector<std::string> transforms;  // DCP's transform_descriptors ("stream.zstd/1"), in the order in which readers undo them
};

struct FileInfo {
  std::string name;                       // object name, relative to the checkpoint
  std::optional<std::uint64_t> length;    // bytes; absent if PyTorch wrote the file
  std::optional<std::uint32_t> crc32;     // covers all bytes of the file
  std::optional<std::uint32_t> trailer_length;  // bytes of the trailer at the end of the file
  std::string written_by = "";  // the save id of the save that wrote the bytes; "": the save that this record describes
};

struct TensorStorageMetadata {
  TensorProperties properties;
  Extents size;
  std::vector<Box> chunks;
  std::vector<StorageInfo> storage;  // one per chunk; empty if a user-defined writer recorded none
  // If `dtype` is kUnknown: the name of the type, PyTorch's ("float6_e3m2fn") or that of the
  // safetensors format ("F6_E3M2").
  std::string unknown_dtype;
  std::string type_name() const { return properties.dtype == DType::kUnknown ? unknown_dtype : to_string(properties.dtype); }
};

struct BytesStorageMetadata {
  std::optional<StorageInfo> storage;
  std::string opaque = "";  // the class of a value in a file of torch.save that no load can take ("argparse.Namespace")
};

// One step of the path to a value in a nested state dict: a key of a dict, or an index of a list.
using PathElement = std::variant<std::string, std::int64_t>;
using Path = std::vector<PathElement>;
std::string to_string(const Path& path);  // joined with '.', as in DCP's flattened names
// Returns a path for error texts: `["model"]["net1.weight"][0]`. Unlike to_string(Path), it
// distinguishes keys that contain dots from nested keys.
std::string describe_path(const Path& path);

// Information that Cairn's commit record adds to PyTorch's metadata. Absent in checkpoints that
// PyTorch wrote.
struct CommitInfo {
  // 1 + the largest sequence in the run at the time of publication. The latest checkpoint of a run
  // has the largest sequence.
  std::uint64_t sequence = 0;
  std::optional<std::int64_t> step;   // the trainer's iteration
  int world_size = 0;                 // number of ranks of the save
  std::string plan_digest;            // lower-case hexadecimal SHA-256 over the plan digests of all ranks
  std::string writer_version;         // Cairn's version
  std::map<std::string, std::string> user_metadata;
  // Save ids of earlier checkpoints at this place whose data files may still exist, newest first.
  // If PyTorch saved the oldest of them, the list ends with the names of its data files.
  std::vector<std::string> retired;
  // The save ids of the other saves that wrote files of this checkpoint (FileInfo::written_by).
  std::vector<std::string> shares_with = {};
};

// The stored names that a load needs. In a large world, a rank may need few of a checkpoint's.
struct NeededNames {
  NameTable names;                    // decoded without their paths
  std::vector<std::string> prefixes;  // stand for each name that equals one of these or lies below it
};

// Entries by their names alone.
struct OtherEntries {
  NameList names;
  std::vector<bool> are_bytes;  // by name: whether it is a bytes object, not a tensor
};

struct Metadata {
  using Entry = std::variant<TensorStorageMetadata, BytesStorageMetadata>;

  // Pairs of flattened name (FQN) and entry, in the order of `.metadata`.
  std::vector<std::pair<std::string, Entry>> state_dict_metadata;
  std::vector<FileInfo> files;
  // The path of each flattened name; DCP calls this planner_data. If Cairn saved the checkpoint,
  // these paths are in the order of state_dict_metadata.
  std::vector<std::pair<std::string, Path>> planner_data;
  std::string checkpoint_id;  // from DCP's StorageMeta
  std::string save_id;        // "" if PyTorch recorded none
  std::string version;        // DCP's Metadata.version; "" if absent
  std::optional<CommitInfo> commit;
  // The names of further entries, in their order, if only those that a load needs were decoded.
  OtherEntries others;
  // Number, and size in bytes, of fields of later versions in Cairn's record. They are not written
  // again.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> later_fields;

  // Returns the entry of `fqn`, or nullptr. O(1) after the first call. Fastest if it is entry
  // `likely`, or the one after the entry that was looked up last. Call `reindex` after changing
  // names in state_dict_metadata. Thread-safe as long as the metadata is not changed.
  const Entry* find(const std::string& fqn, std::size_t likely = 0) const;
  Entry* find(const std::string& fqn);
  // Returns the position in state_dict_metadata instead.
  std::optional<std::size_t> position_of(const std::string& fqn, std::size_t likely = 0) const;
  void reindex();
  // Takes a table of the same names, in their order, as the index.
  void reindex(NameTable names);
  // Returns the names of state_dict_metadata, in their order; fewer if a name is there twice. Makes
  // the index anew if names have changed.
  NameTable names() const;

 private:
  std::shared_ptr<const NameTable> make_index() const;

  // `find` builds the index when it is needed. Several threads may call `find` at once, so a lock
  // guards the index.
  class NameIndex {
   public:
    NameIndex() = default;
    NameIndex(const NameIndex& other) : names_(other.load()) {}
    NameIndex& operator=(const NameIndex& other) {
      if (this != &other) store(other.load());
      return *this;
    }
    std::shared_ptr<const NameTable> load() const {
      const MutexLock lock(mutex_);
      return names_;
    }
    void store(std::shared_ptr<const NameTable> names) {
      const MutexLock lock(mutex_);
      names_.swap(names);
    }
    mutable std::atomic<std::size_t> next{0};  // after the entry that was looked up last

   private:
    mutable Mutex mutex_;
    std::shared_ptr<const NameTable> names_ CAIRN_GUARDED_BY(mutex_);
  };
  mutable NameIndex index_;
};

}  // namespace cairn
