// Finds the bytes of its storage that a strided tensor uses, and the tensors that use the same
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

namespace cairn {

// A range of bytes, counted from the start of a storage.
struct StorageRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t length() const { return end - begin; }
};

// Returns the range from the first to the last byte that the tensor's elements use. The range is
// empty if the tensor has no elements.
StorageRange storage_range(const torch::Tensor& tensor);

// Returns why the storage does not hold all elements ("has a storage of 0 bytes, but …"), or an
// empty string if it does. A storage can be freed or shrunk while tensors still refer to it.
std::string why_without_memory(const torch::Tensor& tensor);

// Tells autograd that the elements have changed: increments the tensor's version. Does nothing for
// tensors of inference mode, which have no version.
void count_change(const torch::Tensor& tensor);

// Two tensors, by index, that use common bytes. `first` equals `second` if elements of one tensor
// share bytes, or lie between each other in a way that only `as_strided` makes.
struct SharedMemory {
  std::size_t first = 0;
  std::size_t second = 0;
  bool is_same = false;  // both use exactly the same bytes, in whatever order
};

// Finds the tensors that use common bytes, whatever storages they belong to. Lists each tensor that
// shares bytes with one of the tensors that use those bytes. Tensors without elements share
// nothing. Exact, also for interleaved columns. Takes O(n log n); where address ranges intersect,
// also one step per contiguous run of elements. All tensors must have their memory.
std::vector<SharedMemory> find_shared_memory(const std::vector<torch::Tensor>& tensors);

}  // namespace cairn
