// Reads one part of a tensor outside of a load, for conversions.
#pragma once

#include <string>

#include <torch/types.h>

#include <cairn/planning/metadata.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// Returns the elements of `box` of tensor `name`, dense, in memory, in the carrier_type_of its
// dtype. `reader` was set up with the metadata that contain `stored`. The chunks of `stored` must
// cover the box; elements that they lack have any value. Throws what the reader throws.
torch::Tensor read_part(StorageReader& reader, const std::string& name, const TensorStorageMetadata& stored, const Box& box);

}  // namespace cairn
