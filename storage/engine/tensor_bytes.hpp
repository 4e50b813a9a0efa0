// A tensor seen as a run of bytes: its elements in row-major order, whatever its strides and device.
//
// Host tensors are copied by plain loops on the calling thread: LibTorch's own copies would start threads of their own. Tensors on
// other devices, and those whose elements need converting, are copied by LibTorch in small parts.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Thread-safe as far as the calls touch different elements. Positions and lengths are bytes of the run and multiples of
// `element_bytes()`, else InternalError.
class TensorBytes {
 public:
  TensorBytes() = default;
  // The run holds elements of `dtype`; the tensor's own may differ: elements are converted on the way. Throws kUnsupported for a
  // layout without strides (sparse, quantized, undefined).
  TensorBytes(torch::Tensor tensor, torch::ScalarType dtype);
  explicit TensorBytes(const torch::Tensor& tensor);

  bool defined() const { return tensor_.defined(); }
  const torch::Tensor& tensor() const { return tensor_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  std::size_t element_bytes() const { return element_bytes_; }
  // The memory that is the run, if there is such: on the host, contiguous, elements as they are. nullptr otherwise.
  char* direct() const { return direct_; }

  // Copies bytes `first`… of the run to `destination`.
  void read(std::uint64_t first, MutableByteSpan destination) const;
  // Copies `source` to bytes `first`… of the run.
  void write(std::uint64_t first, ByteSpan source) const;

 private:
  template <bool kRead>
  void copy(std::uint64_t first, char* bytes, std::uint64_t length) const;

  torch::Tensor tensor_;  // detached
  torch::ScalarType dtype_ = torch::kFloat32;
  std::uint64_t size_bytes_ = 0;
  std::size_t element_bytes_ = 1;
  char* base_ = nullptr;  // of the first element, for plain loops
  char* direct_ = nullptr;
  // Sizes and strides (elements) of base_ with neighbouring dimensions joined where they can be; outermost first.
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

// The streams that are current for the calling thread, one per device: device memory that other threads copy is read and written in
// the order of the caller's work.
class CurrentStreams {
 public:
  static CurrentStreams capture();

  // Makes them current for the thread that creates it, until it is gone.
  class Scope {
   public:
    explicit Scope(const CurrentStreams& streams) : guard_(streams.streams_) {}

   private:
    c10::MultiStreamGuard guard_;
  };

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace cairn
