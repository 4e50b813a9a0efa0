// The pickle of one plain tensor, as torch.save writes it, byte for byte: what every stored tensor chunk begins with.
#pragma once

#include <cstdint>
#include <string_view>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// How PyTorch names the storage of a dtype. Types that came without a storage class of their own say "UntypedStorage" and carry the
// dtype beside it.
struct StorageClass {
  std::string_view module;  // "torch" or "torch.storage"
  std::string_view name;    // "FloatStorage", "UntypedStorage", …
  bool is_typed = true;
};
StorageClass storage_class(DType dtype);

// The strides, in elements, of a contiguous tensor; a dimension of size 0 counts as 1, as in PyTorch.
Extents contiguous_strides(const Extents& sizes);

// The pickle (protocol 2) of a contiguous tensor on the CPU whose elements are the entry "data/0". The length costs no allocation.
Bytes tensor_pickle(DType dtype, const Extents& sizes);
std::uint64_t tensor_pickle_length(DType dtype, const Extents& sizes);

}  // namespace cairn
