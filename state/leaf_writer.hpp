// Pickles values as torch.save does, but leaves the tensor data to the caller. To get a whole
// archive, call serialize_leaf (planner.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {

enum class BlobsAs : std::uint8_t {
  kOwnType = 1,  // as DCP stores them; torch.load(weights_only=True) refuses an io.BytesIO
  kBytes,        // as Python bytes
};

struct PickledValue {
  Bytes pickle;                        // the entry "data.pkl" of an archive
  std::vector<torch::Tensor> tensors;  // dense; tensors[i] holds the elements of storage "i"
};

// Pickles a value. The pickle has no elements of tensors, so a tensor on the meta device may stand
// for one whose data is elsewhere. A tensor listed in `carried` must be dense, and is pickled with
// the type listed there. Throws kUnsupported for values that Python could not read.
PickledValue pickle_value(const Value& value, BlobsAs blobs, const CarriedTypes& carried = {});

}  // namespace cairn
