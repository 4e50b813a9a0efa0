#include <cairn/storage/engine/tensor_bytes.hpp>

#include <algorithm>
#include <cstring>

#include <c10/util/SmallVector.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/device_copies.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Up to this many elements, LibTorch copies on the calling thread.
constexpr std::int64_t kTorchSerialElements = 32 * 1024 - 1;

// Copies `count` elements of `kBytes` bytes between strided and contiguous memory.
template <bool kRead, std::size_t kBytes>
void copy_strided(char* strided, std::int64_t stride_bytes, char* dense, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (kRead)
      std::memcpy(dense, strided, kBytes);
    else
      std::memcpy(strided, dense, kBytes);
    strided += stride_bytes;
    dense += kBytes;
  }
}

template <bool kRead>
void copy_run(char* strided, std::int64_t stride, char* dense, std::int64_t count, std::size_t element_bytes) {
  if (stride == 1) {
    const std::size_t length = static_cast<std::size_t>(count) * element_bytes;
    if constexpr (kRead)
      std::memcpy(dense, strided, length);
    else
      std::memcpy(strided, dense, length);
    return;
  }
  const std::int64_t stride_bytes = stride * static_cast<std::int64_t>(element_bytes);
  // A constant size lets the compiler turn each memcpy into one load and store.
  switch (element_bytes) {
    case 1:
      return copy_strided<kRead, 1>(strided, stride_bytes, dense, count);
    case 2:
      return copy_strided<kRead, 2>(strided, stride_bytes, dense, count);
    case 4:
      return copy_strided<kRead, 4>(strided, stride_bytes, dense, count);
    case 8:
      return copy_strided<kRead, 8>(strided, stride_bytes, dense, count);
    case 16:
      return copy_strided<kRead, 16>(strided, stride_bytes, dense, count);
    default:
      throw InternalError("no element has " + std::to_string(element_bytes) + " bytes");
  }
}

// Calls `visit(part)` for boxes of `tensor` that together are the elements [first, first + count),
// in order.
template <class Visit>
void visit_boxes(const torch::Tensor& tensor, std::int64_t first, std::int64_t count, const Visit& visit) {
  if (count == 0) return;
  // A range of elements is a box only if it is made of whole rows. Otherwise it is split at row
  // boundaries, one dimension after another.
  if (tensor.dim() == 0 || (first == 0 && count == tensor.numel())) return visit(tensor);
  const std::int64_t row = tensor.numel() / tensor.size(0);
  std::int64_t index = first / row;
  if (const std::int64_t begin = first % row; begin != 0) {
    const std::int64_t part = std::min(count, row - begin);
    visit_boxes(tensor.select(0, index), begin, part, visit);
    count -= part;
    ++index;
  }
  if (const std::int64_t rows = count / row; rows > 0) {
    visit(tensor.narrow(0, index, rows));
    count -= rows * row;
    index += rows;
  }
  if (count > 0) visit_boxes(tensor.select(0, index), 0, count, visit);
}

template <bool kRead>
void copy_by_torch(const torch::Tensor& tensor, torch::ScalarType dtype, std::int64_t first, char* bytes, std::int64_t count) {
  torch::NoGradGuard no_grad;
  // In small steps on the CPU: LibTorch would otherwise use its thread pool, which the trainer
  // needs. On a device, one large copy is best.
  const std::int64_t step = tensor.device().is_cpu() ? kTorchSerialElements : count;
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  while (count > 0) {
    const std::int64_t part = std::min(count, step);
    visit_boxes(tensor, first, part, [&](const torch::Tensor& box) {
      const auto dense = torch::from_blob(bytes, box.sizes(), torch::TensorOptions().dtype(dtype));
      if constexpr (kRead) {
        dense.copy_(box);
      } else {
        torch::Tensor destination = box;
        destination.copy_(dense);
      }
      bytes += box.numel() * element_bytes;
    });
    first += part;
    count -= part;
  }
}

}  // namespace

TensorBytes::TensorBytes(const torch::Tensor& tensor)
    : TensorBytes(tensor, tensor.defined() ? tensor.scalar_type() : torch::kFloat32) {}

TensorBytes::TensorBytes(torch::Tensor tensor, torch::ScalarType dtype) : dtype_(dtype) {
  if (const std::string reason = why_not_storable(tensor); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "a tensor that " + reason + " has no plain bytes: convert it to a dense one");
  tensor_ = tensor.detach();
  element_bytes_ = c10::elementSize(dtype);
  size_bytes_ = static_cast<std::uint64_t>(tensor_.numel()) * element_bytes_;
  // Only plain memory can be copied byte by byte. LibTorch copies everything else.
  const bool plain = tensor_.device().is_cpu() && tensor_.scalar_type() == dtype && !tensor_.is_conj() && !tensor_.is_neg();
  if (!plain || tensor_.numel() == 0) return;

  base_ = static_cast<char*>(tensor_.data_ptr());
  for (std::int64_t dim = 0; dim < tensor_.dim(); ++dim) {
    const std::int64_t size = tensor_.size(dim);
    const std::int64_t stride = tensor_.stride(dim);
    if (size == 1) continue;
    // Merges dimensions that are adjacent in memory, so that the runs below are as long as
    // possible.
    if (!sizes_.empty() && strides_.back() == size * stride) {
      sizes_.back() *= size;
      strides_.back() = stride;
    } else {
      sizes_.push_back(size);
      strides_.push_back(stride);
    }
  }
  if (sizes_.empty()) {
    sizes_ = {1};
    strides_ = {1};
  }
  if (sizes_.size() == 1 && strides_[0] == 1) direct_ = base_;
}

template <bool kRead>
void TensorBytes::copy(std::uint64_t first, char* bytes, std::uint64_t length) const {
  check_invariant(first <= size_bytes_ && length <= size_bytes_ - first, "a copy must stay within its tensor");
  if (length == 0) return;
  if (direct_) {
    if constexpr (kRead)
      std::memcpy(bytes, direct_ + first, length);
    else
      std::memcpy(direct_ + first, bytes, length);
    return;
  }
  check_invariant(first % element_bytes_ == 0 && length % element_bytes_ == 0, "a copy must not split an element");
  auto position = static_cast<std::int64_t>(first / element_bytes_);
  auto count = static_cast<std::int64_t>(length / element_bytes_);
  if (!base_)
    return with_torch(kRead ? "copy out of a tensor" : "copy into a tensor", [&] {
      OwnStream stream(tensor_.device());
      copy_by_torch<kRead>(tensor_, dtype_, position, bytes, count);
      stream.wait();  // the last step of a copy into strided memory has only been queued
    });

  // Position of the first element: an index per dimension, and the distance from the base.
  const std::size_t dims = sizes_.size();
  c10::SmallVector<std::int64_t, 8> index(dims);  // no heap allocation: a part may be a single element
  std::int64_t distance = 0;
  for (std::size_t dim = dims; dim-- > 0;) {
    index[dim] = position % sizes_[dim];
    position /= sizes_[dim];
    distance += index[dim] * strides_[dim];
  }
  const std::size_t inner = dims - 1;
  const auto element = static_cast<std::int64_t>(element_bytes_);
  while (true) {
    const std::int64_t run = std::min(count, sizes_[inner] - index[inner]);
    copy_run<kRead>(base_ + distance * element, strides_[inner], bytes, run, element_bytes_);
    bytes += run * element;
    count -= run;
    if (count == 0) return;
    distance -= index[inner] * strides_[inner];
    index[inner] = 0;
    for (std::size_t dim = inner; dim-- > 0;) {
      distance += strides_[dim];
      if (++index[dim] < sizes_[dim]) break;
      distance -= sizes_[dim] * strides_[dim];
      index[dim] = 0;
    }
  }
}

void TensorBytes::read(std::uint64_t first, MutableByteSpan destination) const {
  copy<true>(first, destination.data(), destination.size());
}

void TensorBytes::write(std::uint64_t first, ByteSpan source) const {
  copy<false>(first, const_cast<char*>(source.data()), source.size());  // never written to when copying in this direction
}

}  // namespace cairn
