// A tensor as a run of bytes: its elements in row-major order, for any strides and device.
//
// Host tensors are copied by plain loops on the calling thread, because LibTorch's copies start
// threads of their own. LibTorch copies tensors on other devices, and host tensors whose elements
// need conversion. The latter are copied in parts too small for LibTorch to start threads.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Thread-safe if concurrent calls use different elements. Positions and lengths count bytes of the
// run. They must be multiples of `element_bytes()` unless `direct()` is set; otherwise functions
// throw InternalError.
class TensorBytes {
 public:
  TensorBytes() = default;
  // The run holds elements of `dtype`; if the tensor has another dtype, copies convert. Throws
  // kUnsupported for a tensor without strides (sparse, quantized, undefined).
  TensorBytes(torch::Tensor tensor, torch::ScalarType dtype);
  // Does the same with the tensor's own dtype.
  explicit TensorBytes(const torch::Tensor& tensor);

  bool defined() const { return tensor_.defined(); }
  const torch::Tensor& tensor() const { return tensor_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  std::size_t element_bytes() const { return element_bytes_; }
  bool is_on_host() const { return tensor_.device().is_cpu(); }
  // Returns the memory that holds the run, if the tensor is on the host, contiguous and needs no
  // conversion; otherwise nullptr.
  char* direct() const { return direct_; }

  // These copies come after the work that the calling thread's current streams have been given, and
  // are done when the function returns.
  //
  // Copies bytes of the run, from `first` on, to `destination`.
  void read(std::uint64_t first, MutableByteSpan destination) const;
  // Copies `source` to the run, from `first` on.
  void write(std::uint64_t first, ByteSpan source) const;

 private:
  template <bool kRead>
  void copy(std::uint64_t first, char* bytes, std::uint64_t length) const;

  torch::Tensor tensor_;  // detached
  torch::ScalarType dtype_ = torch::kFloat32;
  std::uint64_t size_bytes_ = 0;
  std::size_t element_bytes_ = 1;
  char* base_ = nullptr;  // address of the first element; null if LibTorch copies
  char* direct_ = nullptr;
  // Sizes and strides (in elements) of base_, outermost first. Neighbouring dimensions are merged
  // where possible.
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

}  // namespace cairn
