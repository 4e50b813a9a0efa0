// Boxes: axis-aligned parts of a tensor, in its global index space.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// A short list of sizes or offsets in elements, one per dimension. Lists of up to `kInlineDims`
// numbers need no allocation; this matters because plans of large worlds hold millions of lists.
class Extents {
 public:
  static constexpr std::size_t kInlineDims = 4;  // copy() handles exactly this many without a loop

  Extents() noexcept : inline_{} {}
  Extents(std::initializer_list<std::int64_t> values) : Extents(values.begin(), values.size()) {}
  explicit Extents(const std::vector<std::int64_t>& values) : Extents(values.data(), values.size()) {}
  Extents(const std::int64_t* values, std::size_t count) : inline_{} {
    reserve(count);
    copy(values, count, begin());
  }
  static Extents filled(std::size_t dims, std::int64_t value) {
    Extents result;
    result.reserve(dims);
    std::fill(result.begin(), result.end(), value);
    return result;
  }

  Extents(const Extents& other) : inline_{} {
    if (other.is_inline()) {
      take_inline(other);
    } else {
      reserve(other.size_);
      copy(other.heap_, size_, heap_);
    }
  }
  Extents(Extents&& other) noexcept : inline_{} {
    take_inline(other);
    other.size_ = 0;  // the heap array now belongs to this list
  }
  Extents& operator=(const Extents& other) {
    if (is_inline() && other.is_inline()) {
      take_inline(other);
    } else if (this != &other) {
      *this = Extents(other);
    }
    return *this;
  }
  Extents& operator=(Extents&& other) noexcept {
    if (this != &other) {
      if (!is_inline()) delete[] heap_;
      take_inline(other);
      other.size_ = 0;
    }
    return *this;
  }
  ~Extents() {
    if (!is_inline()) delete[] heap_;
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::int64_t operator[](std::size_t dim) const { return begin()[dim]; }
  std::int64_t& operator[](std::size_t dim) { return begin()[dim]; }
  const std::int64_t* begin() const noexcept { return is_inline() ? inline_ : heap_; }
  const std::int64_t* end() const noexcept { return begin() + size_; }
  std::int64_t* begin() noexcept { return is_inline() ? inline_ : heap_; }
  std::int64_t* end() noexcept { return begin() + size_; }
  std::vector<std::int64_t> to_vector() const { return {begin(), end()}; }

  friend bool operator==(const Extents& a, const Extents& b) noexcept {
    if (a.size_ != b.size_) return false;
    const std::int64_t* values_a = a.begin();
    const std::int64_t* values_b = b.begin();
    for (std::uint32_t dim = 0; dim < a.size_; ++dim)
      if (values_a[dim] != values_b[dim]) return false;
    return true;
  }
  friend bool operator!=(const Extents& a, const Extents& b) noexcept { return !(a == b); }
  friend bool operator<(const Extents& a, const Extents& b) noexcept {  // lexicographic
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  bool is_inline() const noexcept { return size_ <= kInlineDims; }
  // Sets the size of an empty list. If `count` is at most kInlineDims, all values are 0; otherwise
  // all values are indeterminate.
  void reserve(std::size_t count) {
    if (count > kInlineDims) heap_ = new std::int64_t[count];
    size_ = static_cast<std::uint32_t>(count);
  }
  // For the usual two or three numbers, branches are faster than the memcpy call that a compiler
  // generates.
  static void copy(const std::int64_t* values, std::size_t count, std::int64_t* target) noexcept {
    if (count > kInlineDims) {
      std::memcpy(target, values, count * sizeof(std::int64_t));
      return;
    }
    if (count > 0) target[0] = values[0];
    if (count > 1) target[1] = values[1];
    if (count > 2) target[2] = values[2];
    if (count > 3) target[3] = values[3];
  }
  // Copies the size and all bytes of the union: the inline values, or the heap pointer.
  void take_inline(const Extents& other) noexcept {
    size_ = other.size_;
    std::memcpy(inline_, other.inline_, sizeof(inline_));
  }

  std::uint32_t size_ = 0;
  union {
    std::int64_t inline_[kInlineDims];
    std::int64_t* heap_;  // used only if size_ > kInlineDims
  };
};

// Returns the product of the sizes; 1 for a 0-dim tensor. Throws kInvalidArgument for a negative
// size or an overflow of int64.
std::int64_t volume(const Extents& sizes);
std::string to_string(const Extents& extents);  // "[2, 3]"

// The position and size of a chunk within its tensor. `offsets` and `sizes` have one entry per
// dimension of the tensor.
struct Box {
  Extents offsets;
  Extents sizes;

  static Box whole(const Extents& size) { return {Extents::filled(size.size(), 0), size}; }
  bool empty() const noexcept {  // whether some size is 0
    return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  }

  friend bool operator==(const Box& a, const Box& b) noexcept { return a.offsets == b.offsets && a.sizes == b.sizes; }
  friend bool operator!=(const Box& a, const Box& b) noexcept { return !(a == b); }
  friend bool operator<(const Box& a, const Box& b) noexcept {  // by offsets, then sizes
    return a.offsets == b.offsets ? a.sizes < b.sizes : a.offsets < b.offsets;
  }
};

std::string to_string(const Box& box);  // "[0:2, 4:8]"

// Returns the common part of two boxes, or nothing if they have no element in common. Two 0-dim
// boxes intersect in the 0-dim box. Throws kInvalidArgument if the boxes differ in their number of
// dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);
// Returns whether `intersect` would return a box; false if the boxes differ in their number of
// dimensions.
bool overlaps(const Box& a, const Box& b) noexcept;
// Returns whether `inner` lies within `outer`.
bool contains(const Box& outer, const Box& inner) noexcept;
// Returns whether `box` lies within a tensor of size `size` and has the same number of dimensions
// as the tensor.
bool fits(const Box& box, const Extents& size) noexcept;

}  // namespace cairn
