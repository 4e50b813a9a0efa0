// Cairn's own writer and reader: the format of storage/FORMAT.md in any Store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/storage/storage.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct CheckpointWriterOptions {
  bool single_file_per_rank = true;               // false: one file per item
  bool sync_files = true;                         // false: faster, and a power loss may lose the checkpoint
  bool overwrite = true;                          // false: fails with "Checkpoint already exists" if there is one
  unsigned threads = 2;                           // that copy, checksum and write
  std::uint64_t bytes_in_flight_max = 64u << 20;  // staging memory of one rank
  std::uint64_t block_bytes = 4u << 20;           // one unit of copying, checksumming and writing
  bool direct_io = true;                          // where store and file system can
  // Copies as much as staging memory holds before anything is written: for saves whose caller waits for the copies.
  bool copy_first = false;
  std::string run_url;  // whose checkpoints count for the commit sequence; "": the parent of the checkpoint
  // How many generations that were replaced at a place keep their data files, for loads that still read them; 1 at least. The
  // files of older ones go with the next save there.
  std::uint32_t retired_keep = 1;
  bool low_priority = false;  // runs its threads at the lowest CPU and I/O priority
  // Called on the coordinator, on the thread of a save's hooks, before anything is created at the place. The save fails if it
  // throws.
  std::function<void()> before_attempt;
};

struct CheckpointReaderOptions {
  unsigned threads = 2;
  std::uint64_t bytes_in_flight_max = 64u << 20;
  bool verify = true;         // check what is read against the block checksums
  bool verify_first = false;  // check everything that will be read before any destination is changed
};

class CheckpointWriter : public StorageWriter {
 public:
  explicit CheckpointWriter(CheckpointWriterOptions options = {});
  ~CheckpointWriter() override;
  void reset(const std::string& checkpoint_id) override;
  void set_up_storage_writer(const StorageContext& context) override;
  SavePlan prepare_local_plan(SavePlan plan) override;
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override;
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override;
  void finish(Metadata metadata, std::vector<WriteResults> results) override;
  Committed committed(const std::string& save_id) override;
  void abandon() noexcept override;
  void discard(bool ends_attempt) noexcept override;
  std::uint64_t staging_bytes() const override;
  void prepare_staging(std::uint64_t bytes) override;
  void release_staging() noexcept override;
  bool validate_checkpoint_id(const std::string& checkpoint_id) const override;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

class CheckpointReader : public StorageReader {
 public:
  explicit CheckpointReader(CheckpointReaderOptions options = {});
  ~CheckpointReader() override;
  void reset(const std::string& checkpoint_id) override;
  Metadata read_metadata() override;
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override;
  LoadPlan prepare_local_plan(LoadPlan plan) override;
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override;
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override;
  bool validate_checkpoint_id(const std::string& checkpoint_id) const override;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Reads `.metadata` of a checkpoint, Cairn's or PyTorch's. kNotFound (with what to do) if there is none, kCorrupt, kUnsupported.
Metadata read_metadata(Store& store);

// One thing that is wrong with a checkpoint.
struct VerifyFault {
  std::string object;        // file name relative to the checkpoint
  std::uint64_t offset = 0;  // bytes, of the first block that is wrong
  std::string fqn;           // the tensor or value there, "" if none
  std::string what;
};

// Reads every byte of every file and of the commit record: all faults, not the first. `progress` gets bytes done and in all.
std::vector<VerifyFault> verify_checkpoint(Store& store, unsigned threads = 2,
                                           const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace cairn
