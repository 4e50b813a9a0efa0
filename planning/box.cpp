#include <cairn/planning/box.hpp>

#include <limits>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// Returns offset + size. Boxes from users may hold any numbers: an overflow gives the largest value
// instead of undefined behaviour.
std::int64_t end_of(std::int64_t offset, std::int64_t size) {
  std::int64_t end = 0;
  return __builtin_add_overflow(offset, size, &end) ? std::numeric_limits<std::int64_t>::max() : end;
}

}  // namespace

std::int64_t volume(const Extents& sizes) {
  std::int64_t product = 1;
  bool overflow = false;
  bool zero = false;
  for (const std::int64_t size : sizes) {
    if (size < 0)
      throw Error(ErrorCode::kInvalidArgument, "cannot count the elements of " + to_string(sizes) + ": a size is negative");
    // A size of zero makes the whole product zero, even if the other sizes overflow on the way.
    zero = zero || size == 0;
    overflow = __builtin_mul_overflow(product, size, &product) || overflow;
  }
  if (zero) return 0;
  if (overflow)
    throw Error(ErrorCode::kInvalidArgument, "cannot count the elements of " + to_string(sizes) + ": more than 63 bits can count");
  return product;
}

std::string to_string(const Extents& extents) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < extents.size(); ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(extents[dim]);
  }
  return text + "]";
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < box.offsets.size(); ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(box.offsets[dim]) + ":";
    if (dim < box.sizes.size()) text += std::to_string(end_of(box.offsets[dim], box.sizes[dim]));
  }
  return text + "]";
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  const std::size_t dims = a.offsets.size();
  if (a.sizes.size() != dims || b.offsets.size() != dims || b.sizes.size() != dims)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot intersect " + to_string(a) + " and " + to_string(b) + ": they differ in their number of dimensions");
  // From here on every dimension has a common part, so no size below is negative.
  if (!overlaps(a, b)) return std::nullopt;
  Box common{a.offsets, a.sizes};
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const std::int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    common.offsets[dim] = begin;
    common.sizes[dim] = std::min(end_of(a.offsets[dim], a.sizes[dim]), end_of(b.offsets[dim], b.sizes[dim])) - begin;
  }
  return common;
}

bool overlaps(const Box& a, const Box& b) noexcept {
  const std::size_t dims = a.offsets.size();
  if (a.sizes.size() != dims || b.offsets.size() != dims || b.sizes.size() != dims) return false;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const std::int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    if (begin >= end_of(a.offsets[dim], a.sizes[dim]) || begin >= end_of(b.offsets[dim], b.sizes[dim])) return false;
  }
  return true;
}

bool contains(const Box& outer, const Box& inner) noexcept {
  const std::size_t dims = outer.offsets.size();
  if (outer.sizes.size() != dims || inner.offsets.size() != dims || inner.sizes.size() != dims) return false;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    if (inner.offsets[dim] < outer.offsets[dim] || inner.sizes[dim] < 0 ||
        end_of(inner.offsets[dim], inner.sizes[dim]) > end_of(outer.offsets[dim], outer.sizes[dim]))
      return false;
  }
  return true;
}

bool fits(const Box& box, const Extents& size) noexcept {
  if (box.offsets.size() != size.size() || box.sizes.size() != size.size()) return false;
  for (std::size_t dim = 0; dim < size.size(); ++dim) {
    // Subtracts instead of adding: offset + size may overflow, size - offset cannot.
    if (box.offsets[dim] < 0 || box.sizes[dim] < 0 || box.offsets[dim] > size[dim] || box.sizes[dim] > size[dim] - box.offsets[dim])
      return false;
  }
  return true;
}

}  // namespace cairn
