// A tensor as a run of bytes, for any strides and device. Internal.
//
// Plain loops on the calling thread copy host tensors. LibTorch copies tensors on other devices,
// and host tensors whose elements need conversion. The latter are copied in parts too small for
// LibTorch to start threads.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include <cairn/base/bytes.hpp>
#include <cairn/storage/engine/strided_bytes.hpp>

namespace cairn {

class TensorBytes final : public ElementRun {
 public:
  // The run holds elements of `dtype`; if the tensor has another dtype, copies convert. Throws
  // kUnsupported for a tensor without strides (sparse, quantized, undefined).
  TensorBytes(const torch::Tensor& tensor, torch::ScalarType dtype);
  // Does the same with the tensor's own dtype.
  explicit TensorBytes(const torch::Tensor& tensor);

  // The tensor as it was given.
  const torch::Tensor& tensor() const { return tensor_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  bool is_on_host() const override { return tensor_.device().is_cpu(); }
  char* direct() const override { return plain_.direct(); }
  void read(std::uint64_t first, MutableByteSpan destination) const override;
  void write(std::uint64_t first, ByteSpan source) const override;

 private:
  template <bool kRead>
  void copy_by_torch(std::uint64_t first, char* bytes, std::uint64_t length) const;

  const torch::Tensor tensor_;
  const torch::ScalarType dtype_;
  const std::size_t element_bytes_;
  std::uint64_t size_bytes_ = 0;
  bool is_plain_ = false;
  StridedBytes plain_;  // of a plain tensor
};

}  // namespace cairn
