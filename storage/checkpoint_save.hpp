// One rank's part of a save in Cairn's format, without tensors: CheckpointWriter
// (state/checkpoint_writer.hpp) without its planner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/cpu_share.hpp>
#include <cairn/base/failure.hpp>
#include <cairn/base/future.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/storage_context.hpp>

namespace cairn {

class DataFormat;
class ItemSource;

// The tensors that a save takes over from the last one, instead of writing them again, if they have
// not changed.
enum class Reuse : std::uint8_t {
  kOff = 1,
  kDeclared,  // the tensors that the caller has marked by `frozen`
  kDigest,    // in addition, all others that do not change between saves
};

struct CheckpointWriterOptions {
  // True: one file per rank, or several where the system would run the writes to one file one after
  // another. False: one file per item.
  bool single_file_per_rank = true;
  // Limits the files of all ranks together; a rank that writes has at least one, and one more for
  // tensors that seldom change (`reuse`). No effect if there is one file per item. The
  // coordinator's value counts.
  std::uint32_t files_max = 4096;
  bool sync_files = true;                         // false: faster, but a power loss may lose the checkpoint
  bool overwrite = true;                          // false: fails with "Checkpoint already exists" if there is one
  unsigned threads = cpu_share();                 // for copying, checksums and writing; 0: the calling thread
  std::uint64_t bytes_in_flight_max = 64u << 20;  // staging memory of one rank
  std::uint64_t block_bytes = 4u << 20;           // unit of copying, checksums and writing
  bool direct_io = true;                          // if the store and its file system support it
  // 0: no compression. 1 to 19: compresses tensors with zstd at this level; 1 and 3 are fast. Each
  // thread then needs some MiB beyond `bytes_in_flight_max`. `copy_first` has no effect, so an
  // `async_save` with StagingOptions::stream returns only when nearly all is written. No space is
  // reserved in advance, so a full disk is noticed only while the rank writes. PyTorch reads such a
  // checkpoint if the Python package zstandard is installed.
  int zstd_level = 0;
  // Descriptors of registered transforms, such as "stream.rot13/1" (storage/stream_transform.hpp).
  // Every item passes through them from the last to the first. Tensors are compressed before that.
  // Readers undo the first transform first, as PyTorch's readers do. With transforms, a load that
  // needs only a part of an item reads the item from its start. `copy_first` has no effect.
  std::vector<std::string> transforms;
  // Fills the staging memory before writing anything. Meant for saves whose caller waits only until
  // the state has been copied.
  bool copy_first = false;
  // URL of the run in which the checkpoint gets its commit sequence. "": the checkpoint's parent.
  std::string run_url;
  // Number of replaced checkpoints at this place whose data files are kept for loads that still
  // read them; at least 1. The next save to the same place removes the files of older ones.
  std::uint32_t retired_keep = 1;
  // Takes tensors that have not changed since the last save of this checkpointer over from that
  // checkpoint, by `Store::link`, instead of writing them again. Compares 128-bit digests (XXH3) of
  // their elements, for which the save reads them once more; no defence against hostile data. Each
  // checkpoint stays whole if others are removed. Tensors that seldom change get files of their
  // own: those marked by `frozen` (state_dict.hpp), and with kDigest those that were the same in
  // the last two saves. Such a file is written if a tensor in it has changed, or if it cannot be
  // linked, because the last checkpoint was removed or the store refuses. If it cannot be linked,
  // the log says why. Everything is written in the first save of a process, after a change of other
  // options, after a load that found damage, and in memory. No effect for safetensors files.
  Reuse reuse = Reuse::kOff;
  // The number of checkpoints, at least 1, that may share a file. After that many saves, everything
  // is written anew, so that one bad sector does not damage all checkpoints of a run.
  std::uint32_t reuse_generations_max = 10;
  bool low_priority = false;  // runs the writing threads at the lowest CPU and I/O priority
  // Called on the coordinator with the checkpoint's id, on the thread that runs the save's hooks,
  // before anything is created in the store. If it throws, the save fails. A checkpointer reuses
  // its writer for later saves whose options differ only in this function. A reused writer still
  // calls the first save's function. The function may report to `observer` how long it waited;
  // without traces, `observer` is null.
  std::function<void(const std::string& checkpoint_id, StoreObserver* observer)> before_attempt;
};

// The phases, threads and errors are those of StorageWriter (state/storage.hpp).
class CheckpointSave {
 public:
  explicit CheckpointSave(CheckpointWriterOptions options);
  // Null: Cairn's own format of data files.
  CheckpointSave(CheckpointWriterOptions options, std::unique_ptr<DataFormat> format);
  ~CheckpointSave();
  void reset(const std::string& checkpoint_id);
  void set_up(const StorageContext& context);
  SavePlan prepare_local_plan(SavePlan plan);
  bool repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans);
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans);
  // Writes the items of `plan`, whose data `source` has.
  Future<WriteResults> write(const SavePlan& plan, std::shared_ptr<ItemSource> source);
  void finish(Metadata metadata, const std::vector<WriteResults>& results);
  Committed committed(const std::string& save_id);
  void abandon() noexcept;
  void discard(bool ends_attempt) noexcept;
  std::uint64_t staging_bytes() const;
  void prepare_staging(std::uint64_t bytes);
  void release_staging() noexcept;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
