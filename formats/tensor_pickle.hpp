// Writes tensors into pickles. Every stored tensor chunk begins with the pickle of one plain
// tensor, byte for byte as torch.save writes it.
#pragma once

#include <cstdint>
#include <string_view>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/pickler.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// PyTorch's name for the storage of a dtype. Newer dtypes have no storage class of their own; they
// use "UntypedStorage" and store the dtype separately.
struct StorageClass {
  std::string_view module;  // "torch" or "torch.storage"
  std::string_view name;    // "FloatStorage", "UntypedStorage", …
  bool is_typed = true;
};
StorageClass storage_class(DType dtype);

// Returns the strides, in elements, of a contiguous tensor. A dimension of size 0 counts as 1, as
// in PyTorch.
Extents contiguous_strides(const Extents& sizes);

// Appends a contiguous CPU tensor whose elements are the entry "data/<storage_key>".
void put_tensor(Pickler& out, std::string_view storage_key, DType dtype, const Extents& sizes, bool requires_grad);

// Returns the pickle (protocol 2) of a contiguous CPU tensor whose elements are the entry "data/0".
// `tensor_pickle_length` returns its length without allocating.
Bytes tensor_pickle(DType dtype, const Extents& sizes);
std::uint64_t tensor_pickle_length(DType dtype, const Extents& sizes);

}  // namespace cairn
