// Cairn's own writer and reader. They use the format that storage/FORMAT.md describes, in any
// Store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/cpu_share.hpp>
#include <cairn/planning/read_once.hpp>
#include <cairn/state/storage.hpp>
#include <cairn/storage/checkpoint_save.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

class RankStreams;

struct CheckpointReaderOptions {
  unsigned threads = cpu_share();
  // Staging memory of this rank. With LoadOptions::read_once, about 9 MiB more for each rank from
  // which this one receives. From the second read of an attempt on, the reader may use up to the
  // same amount of memory in addition, to keep checked blocks for later reads.
  std::uint64_t bytes_in_flight_max = 64u << 20;
  bool verify = true;         // checks the bytes read against the block checksums
  bool verify_first = false;  // before it changes any value, checks all bytes that this rank needs
};

class CheckpointWriter : public StorageWriter {
 public:
  explicit CheckpointWriter(CheckpointWriterOptions options = {});
  ~CheckpointWriter() override;
  void reset(const std::string& checkpoint_id) override { save_.reset(checkpoint_id); }
  void set_up_storage_writer(const StorageContext& context) override { save_.set_up(context); }
  SavePlan prepare_local_plan(SavePlan plan) override { return save_.prepare_local_plan(std::move(plan)); }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    return save_.prepare_global_plan(std::move(plans));
  }
  bool repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans) override {
    return save_.repeats(of, plans);
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override;
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    save_.finish(std::move(metadata), std::move(results));
  }
  Committed committed(const std::string& save_id) override { return save_.committed(save_id); }
  void abandon() noexcept override { save_.abandon(); }
  void discard(bool ends_attempt) noexcept override { save_.discard(ends_attempt); }
  std::uint64_t staging_bytes() const override { return save_.staging_bytes(); }
  void prepare_staging(std::uint64_t bytes) override { save_.prepare_staging(bytes); }
  void release_staging() noexcept override { save_.release_staging(); }

 protected:
  // Writes data files in another format, with the same protocol. Null: Cairn's own format.
  CheckpointWriter(CheckpointWriterOptions options, std::unique_ptr<DataFormat> format);

 private:
  CheckpointSave save_;
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
  void abandon() noexcept override;
  bool validate_checkpoint_id(const std::string& checkpoint_id) const override;

  // Lets this rank share what ranks read (planning/read_once.hpp). For Checkpointer. `address`
  // returns where this rank takes streams, or "" if it cannot. `open` opens them, and may throw.
  using OpenStreams = std::function<std::shared_ptr<RankStreams>(std::shared_ptr<const SharedReads>)>;
  void share_reads(ReadOnce wanted, std::function<std::string()> address, OpenStreams open);
  // Lets the next `read_metadata` leave out entries of other names. For Checkpointer.
  void expect(NeededNames needed);

 protected:
  Store& opened();  // the store of the checkpoint

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
