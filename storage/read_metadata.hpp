// Reads the record of a checkpoint. Does not include LibTorch.
#pragma once

#include <map>

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Reads `.metadata` of a checkpoint that Cairn or PyTorch wrote, or joins the records that PyTorch
// wrote for each rank (use_collectives=False). If several ranks saved the same value or part of a
// tensor, that of the lowest rank is used. Throws kNotFound if there is no checkpoint, or if a
// record or a data file of a rank is missing, and kMismatch if the joined parts do not make whole
// tensors; the error text says what to do. Throws kCorrupt if a record is damaged, and kUnsupported
// if this version of Cairn cannot read it. With `needed`, may decode only the entries of a record
// of Cairn's that a load needs; Metadata::others then has the names of the others.
Metadata read_metadata(Store& store, const NeededNames* needed = nullptr);
// Returns the names of PyTorch's records of one rank each, by rank.
std::map<int, ObjectName> rank_records(Store& store);
// Returns whether there is a record of the whole checkpoint, or records of ranks.
bool has_records(Store& store);
// Takes the record from a look at the place, if that has all of it. Reads it otherwise, and if it
// is damaged there: one answer of the store may have been damaged on its way.
Metadata read_metadata(Store& store, const PlaceContents& found);

// Returns whether torch_checkpointing wrote what is at a place without a record of its own: by the
// content of metadata.pkl, or by the name of a file of rank 0 if there are neither directories nor
// safetensors files.
bool is_torch_checkpointing(Store& store);

}  // namespace cairn
