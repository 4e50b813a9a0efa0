// Loads checkpoints of torch_checkpointing, Meta's library.
//
//   cairn::LoadOptions options;
//   options.storage_reader = std::make_shared<cairn::TorchCheckpointingReader>();
//   cairn::load(state, "run/checkpoint_100", options);
#pragma once

#include <cairn/state/torch_save.hpp>

namespace cairn {

// Reads a directory that torch_checkpointing wrote, with or without its record, metadata.pkl.
// Executes nothing. The names of tensors and values begin with their item, the top-level key:
// "model.layer.weight". Tensors that the record declares load in any layout, on any number of
// ranks. Every other tensor or value belongs to the rank that saved it. If as many ranks load as
// saved, each rank gets its own. Otherwise the ranks that saved it must have saved the same, which
// every rank gets. A DTensor that the record does not declare is opaque. `read_metadata` opens the
// files of all ranks, on every rank. Files are mapped, as TorchSaveReader does.
class TorchCheckpointingReader : public SavedFilesReader {
 public:
  // `read_metadata` throws kNotFound if the place has no files of torch_checkpointing, or lacks one
  // that the record needs. It throws kCorrupt for a file that is empty, cut short or damaged, as a
  // save that failed leaves it, or that does not hold what the record says. It throws kUnsupported
  // for a place that is no directory, and for a record that Cairn cannot read
  // (storage/format/items_record.hpp). `read_data` throws kMismatch for a value that ranks saved
  // differently, if it has none for this rank.
  TorchCheckpointingReader();
};

}  // namespace cairn
