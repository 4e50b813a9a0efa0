// How one tensor may lie on the ranks of a world, as boxes: for tests that cross layouts with each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/random.hpp>
#include <cairn/planning/box.hpp>

namespace cairn::testing {

// What each rank holds, by rank.
struct BoxLayout {
  std::string name;
  std::vector<std::vector<Box>> boxes;
};

// Rows of `box` along `dim`, cut in `parts` as torch.chunk does: later ones may be smaller or empty.
inline std::vector<Box> chunk_along(const Box& box, std::size_t dim, int parts) {
  std::vector<Box> result;
  const std::int64_t size = box.sizes[dim];
  const std::int64_t step = std::max<std::int64_t>(1, (size + parts - 1) / parts);
  for (int part = 0; part < parts; ++part) {
    Box piece = box;
    const std::int64_t begin = std::min(size, step * part);
    piece.offsets[dim] += begin;
    piece.sizes[dim] = std::min(size, begin + step) - begin;
    result.push_back(piece);
  }
  return result;
}

// Cuts the tensor at random places, again and again: boxes of any arrangement that straight cuts give.
inline std::vector<Box> random_tiling(const Extents& size, int cuts, Random& random) {
  std::vector<Box> boxes{Box::whole(size)};
  for (int i = 0; i < cuts && !size.empty(); ++i) {
    Box& box = boxes[random.next() % boxes.size()];
    const std::size_t dim = random.next() % size.size();
    if (box.sizes[dim] < 2) continue;
    const auto at = static_cast<std::int64_t>(1 + random.next() % static_cast<std::uint64_t>(box.sizes[dim] - 1));
    Box upper = box;
    upper.offsets[dim] += at;
    upper.sizes[dim] -= at;
    box.sizes[dim] = at;
    boxes.push_back(upper);
  }
  return boxes;
}

inline std::vector<BoxLayout> all_layouts(const Extents& size, int ranks, Random& random) {
  const Box whole = Box::whole(size);
  const auto one_each = [](const std::vector<Box>& boxes) {
    std::vector<std::vector<Box>> result;
    for (const Box& box : boxes) result.push_back({box});
    return result;
  };
  std::vector<BoxLayout> layouts;
  layouts.push_back({"replicated", std::vector<std::vector<Box>>(static_cast<std::size_t>(ranks), {whole})});
  for (std::size_t dim = 0; dim < size.size(); ++dim)
    layouts.push_back({"dim-" + std::to_string(dim), one_each(chunk_along(whole, dim, ranks))});
  if (size.size() >= 2 && ranks % 2 == 0) {
    BoxLayout mesh{"2-D mesh", {}};
    BoxLayout hybrid{"replicated pairs", {}};
    for (const Box& row : chunk_along(whole, 0, ranks / 2)) {
      for (const Box& box : chunk_along(row, 1, 2)) mesh.boxes.push_back({box});
      hybrid.boxes.push_back({row});
      hybrid.boxes.push_back({row});
    }
    layouts.push_back(mesh);
    layouts.push_back(hybrid);
  }
  BoxLayout scattered{"any boxes", std::vector<std::vector<Box>>(static_cast<std::size_t>(ranks))};
  for (const Box& box : random_tiling(size, 3 * ranks, random))
    scattered.boxes[random.next() % static_cast<std::uint64_t>(ranks)].push_back(box);
  layouts.push_back(scattered);
  if (ranks > 1 && !size.empty()) {
    BoxLayout left_out{"left-out ranks", one_each(chunk_along(whole, 0, ranks - 1))};
    left_out.boxes.insert(left_out.boxes.begin(), std::vector<Box>{});
    layouts.push_back(left_out);
  }
  return layouts;
}

// Calls `visit(position, linear index within size)` for every element of `box`.
template <class Visit>
void for_each_element(const Box& box, const Extents& size, Visit visit) {
  if (box.empty()) return;
  Extents at = box.offsets;
  for (;;) {
    std::int64_t linear = 0;
    for (std::size_t dim = 0; dim < size.size(); ++dim) linear = linear * size[dim] + at[dim];
    visit(at, static_cast<std::size_t>(linear));
    std::size_t dim = size.size();
    while (dim > 0 && ++at[dim - 1] == box.offsets[dim - 1] + box.sizes[dim - 1]) {
      at[dim - 1] = box.offsets[dim - 1];
      --dim;
    }
    if (dim == 0) return;
  }
}

}  // namespace cairn::testing
