#include <cairn/storage/engine/strided_bytes.hpp>

#include <array>
#include <cstring>
#include <string>

#include <cairn/base/error.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/planning/elements.hpp>

namespace cairn {
namespace {

constexpr std::size_t kDimsInline = 8;  // more need a heap allocation; a part may be a single element

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

// Whether the highest bit of a number is its sign, and nothing else. In types with one zero, that
// bit alone is NaN.
bool has_sign_bit(DType dtype) {
  const bool has_one_zero = dtype == DType::kFloat8E4M3FnUz || dtype == DType::kFloat8E5M2FnUz;
  return is_complex(dtype) || (is_cast_target(dtype) && !has_one_zero);
}

template <class Integer>
void negate_integers(MutableByteSpan elements) {
  for (std::size_t at = 0; at + sizeof(Integer) <= elements.size(); at += sizeof(Integer)) {
    Integer value;
    std::memcpy(&value, elements.data() + at, sizeof value);
    value = static_cast<Integer>(~value + Integer{1});
    std::memcpy(elements.data() + at, &value, sizeof value);
  }
}

}  // namespace

StridedBytes::StridedBytes(char* first, const Extents& sizes, const Extents& strides, std::size_t element_bytes)
    : size_bytes_(static_cast<std::uint64_t>(volume(sizes)) * element_bytes), element_bytes_(element_bytes) {
  if (size_bytes_ == 0) return;
  base_ = first;
  Extents merged = sizes, steps = strides;
  std::size_t dims = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 1) continue;
    // Merges dimensions that are adjacent in memory, so that the runs below are as long as
    // possible.
    if (dims > 0 && steps[dims - 1] == sizes[dim] * strides[dim]) {
      merged[dims - 1] *= sizes[dim];
      steps[dims - 1] = strides[dim];
    } else {
      merged[dims] = sizes[dim];
      steps[dims++] = strides[dim];
    }
  }
  sizes_ = dims > 0 ? Extents(merged.begin(), dims) : Extents{1};
  strides_ = dims > 0 ? Extents(steps.begin(), dims) : Extents{1};
  if (sizes_.size() == 1 && strides_[0] == 1) direct_ = base_;
}

template <bool kRead>
void StridedBytes::copy(std::uint64_t first, char* bytes, std::uint64_t length) const {
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
  // Position of the first element: an index per dimension, and the distance from the base.
  const std::size_t dims = sizes_.size();
  std::array<std::int64_t, kDimsInline> inline_index{};
  std::vector<std::int64_t> long_index(dims > kDimsInline ? dims : 0);
  std::int64_t* const index = dims > kDimsInline ? long_index.data() : inline_index.data();
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

template void StridedBytes::copy<true>(std::uint64_t, char*, std::uint64_t) const;
template void StridedBytes::copy<false>(std::uint64_t, char*, std::uint64_t) const;

StridedBytes part_of_dense(char* first, const Extents& sizes, const Box& box, std::size_t element_bytes) {
  const Extents strides = contiguous_strides(sizes);
  std::int64_t at = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) at += box.offsets[dim] * strides[dim];
  return {first + static_cast<std::size_t>(at) * element_bytes, box.sizes, strides, element_bytes};
}

void apply_lazy_bits(MutableByteSpan elements, DType dtype, bool is_conjugated, bool is_negated) {
  const bool conjugates = is_conjugated && is_complex(dtype);
  if (!conjugates && !is_negated) return;
  if (has_sign_bit(dtype)) {
    const std::size_t step = element_size(dtype) / (is_complex(dtype) ? 2 : 1);
    bool is_imaginary = false;
    for (std::size_t at = step; at <= elements.size(); at += step, is_imaginary = !is_imaginary)
      if (is_negated != (conjugates && is_imaginary)) elements.data()[at - 1] ^= static_cast<char>(0x80);
    return;
  }
  switch (element_size(dtype)) {
    case 1:
      return negate_integers<std::uint8_t>(elements);
    case 2:
      return negate_integers<std::uint16_t>(elements);
    case 4:
      return negate_integers<std::uint32_t>(elements);
    default:
      return negate_integers<std::uint64_t>(elements);
  }
}

}  // namespace cairn
