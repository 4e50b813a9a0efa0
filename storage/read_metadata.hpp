// Reads the record of a checkpoint. Does not include LibTorch.
#pragma once

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Reads `.metadata` of a checkpoint that Cairn or PyTorch wrote. Throws kNotFound if there is no
// checkpoint; the error text says what to do. Throws kCorrupt if the record is damaged, and
// kUnsupported if this version of Cairn cannot read it.
Metadata read_metadata(Store& store);

}  // namespace cairn
