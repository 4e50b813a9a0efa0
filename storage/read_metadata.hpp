// Reads the record of a checkpoint. Does not include LibTorch.
#pragma once

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Reads `.metadata` of a checkpoint that Cairn or PyTorch wrote. Throws kNotFound if there is none;
// the text says what to do. Throws kCorrupt and kUnsupported.
Metadata read_metadata(Store& store);

}  // namespace cairn
