// Elements in memory of the host, with any strides. Internal.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/storage/engine/item_data.hpp>

namespace cairn {

// Borrows the memory. Copies run on the calling thread. LibTorch's would start threads of their
// own.
class StridedBytes final : public ElementRun {
 public:
  StridedBytes() = default;
  // `first` is the address of the first element, and null for other memory. Strides count elements.
  StridedBytes(char* first, const Extents& sizes, const Extents& strides, std::size_t element_bytes);

  std::uint64_t size_bytes() const override { return size_bytes_; }
  bool is_on_host() const override { return true; }
  char* direct() const override { return direct_; }
  void read(std::uint64_t first, MutableByteSpan to) const override { copy<true>(first, to.data(), to.size()); }
  void write(std::uint64_t first, ByteSpan source) const override {
    copy<false>(first, const_cast<char*>(source.data()), source.size());  // never written to when copying in this direction
  }

 private:
  template <bool kRead>
  void copy(std::uint64_t first, char* bytes, std::uint64_t length) const;

  std::uint64_t size_bytes_ = 0;
  std::size_t element_bytes_ = 1;
  char* base_ = nullptr;
  char* direct_ = nullptr;
  // Sizes and strides of base_, outermost first. Neighbouring dimensions are merged where possible.
  Extents sizes_;
  Extents strides_;
};

// Returns the elements of a box of dense memory, which has the size `sizes` and begins at `first`.
StridedBytes part_of_dense(char* first, const Extents& sizes, const Box& box, std::size_t element_bytes);

// Does to contiguous elements what PyTorch does to them only when they are used: negates them, and
// conjugates complex numbers.
void apply_lazy_bits(MutableByteSpan elements, DType dtype, bool is_conjugated, bool is_negated);

}  // namespace cairn
