// Writes values as torch.save does, for those who write the tensors in them by themselves: see serialize_leaf for all else.
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

enum class BlobsAs : std::uint8_t {
  kBytesIO = 1,  // as DCP has them; torch.load(weights_only=True) refuses those
  kBytes,        // Python's bytes
};

struct PickledValue {
  Bytes pickle;                        // the "data.pkl" of an archive
  std::vector<torch::Tensor> tensors;  // dense; the elements of tensors[i] belong into storage "i"
};

// Tensors on the meta device stand for such as the caller has elsewhere: only type and size are looked at. kUnsupported for what Python could
// not read.
PickledValue pickle_value(const Value& value, BlobsAs blobs);

}  // namespace cairn
