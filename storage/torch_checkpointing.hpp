// Loads checkpoints of torch_checkpointing, Meta's library.
//
//   cairn::LoadOptions options;
//   options.storage_reader = std::make_shared<cairn::TorchCheckpointingReader>();
//   cairn::load(state, "run/checkpoint_100", options);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/storage/storage.hpp>

namespace cairn {

// Reads a directory that torch_checkpointing wrote, with or without its record, metadata.pkl.
// Executes nothing. Every top-level key of the saved state is an item, and the names of its tensors
// and values begin with the item: "model.layer.weight".
//
// The record declares how tensors are sharded. They load in any layout, on any number of ranks.
// Every other value or tensor belongs to the rank that saved it. If as many ranks load as saved,
// each rank gets its own. Otherwise the ranks that saved it must have saved the same, which all
// ranks get. Without a record, all files "<item>_<rank>.pt" are read in this way; a DTensor is then
// refused, because nothing tells its place.
//
// `read_metadata` opens the file of every rank on every rank, and so takes time proportional to
// their number. Files are mapped, as TorchSaveReader does.
class TorchCheckpointingReader : public StorageReader {
 public:
  TorchCheckpointingReader();
  ~TorchCheckpointingReader() override;
  void reset(const std::string& checkpoint_id) override;
  // Throws kNotFound if the place has no files of torch_checkpointing, or lacks one that the record
  // needs. Throws kCorrupt for a file that is empty, cut short or damaged, as a save that failed
  // leaves it, or that does not hold what the record says. Throws kUnsupported for a place that is
  // no directory, and for whatever decode_items_record refuses.
  Metadata read_metadata() override;
  void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) override;
  LoadPlan prepare_local_plan(LoadPlan plan) override;
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override;
  // Checks as TorchSaveReader does. Throws kMismatch for a value that ranks saved differently, if
  // it has none for this rank.
  Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) override;

  // For tools. Call these after `read_metadata`. `value` throws as `read_data` does.
  // `why_unreadable` returns why `value`, or a load, would throw kMismatch or kUnsupported, or "".
  Value value(const std::string& fqn);
  std::string why_unreadable(const std::string& fqn) const;

 private:
  struct Implementation;
  std::string path_;
  std::unique_ptr<Implementation> implementation_;  // the open checkpoint
};

}  // namespace cairn
