// Iterates over a tensor in pieces that fit into memory. Does no I/O.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cairn/planning/box.hpp>

namespace cairn {

// Calls `visit(box, begin)` for boxes that tile a tensor of `size`, in row-major order. Each box
// has at most `elements_max` elements (at least one), which are contiguous in that order. `begin`
// is the number of elements before the box. An empty tensor has no boxes.
template <class Visit>
void for_each_piece(const Extents& size, std::int64_t elements_max, Visit&& visit) {
  const std::int64_t all = volume(size);
  if (all == 0) return;
  // A box spans all of each dimension from `whole` on, a range of dimension `whole` - 1, and one
  // index of each earlier dimension.
  std::size_t whole = size.size();
  std::int64_t inner = 1;
  while (whole > 0 && inner * size[whole - 1] <= std::max<std::int64_t>(1, elements_max)) inner *= size[--whole];
  if (whole == 0) {
    visit(Box::whole(size), std::int64_t{0});
    return;
  }
  const std::size_t cut = whole - 1;
  const std::int64_t step = std::max<std::int64_t>(1, elements_max / inner);
  Box box = Box::whole(size);
  for (std::size_t dim = 0; dim < cut; ++dim) box.sizes[dim] = 1;
  for (std::int64_t begin = 0; begin < all;) {
    box.sizes[cut] = std::min(step, size[cut] - box.offsets[cut]);
    visit(static_cast<const Box&>(box), begin);
    begin += box.sizes[cut] * inner;
    box.offsets[cut] += box.sizes[cut];
    for (std::size_t dim = cut; dim > 0 && box.offsets[dim] == size[dim]; --dim) {
      box.offsets[dim] = 0;
      ++box.offsets[dim - 1];
    }
  }
}

}  // namespace cairn
