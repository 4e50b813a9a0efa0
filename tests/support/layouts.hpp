// Layouts of one tensor over the ranks of a world, as boxes, for tests that save in one layout and
// load in another. laid_out_state.hpp builds state dicts in these layouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/base/random.hpp>
#include <cairn/planning/box.hpp>

namespace cairn::testing {

// The boxes that each rank holds, indexed by rank.
struct BoxLayout {
  std::string name;
  std::vector<std::vector<Box>> boxes;
};

// Cuts `box` along `dim` into `parts` boxes as torch.chunk does: later ones may be smaller or
// empty.
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

// Cuts random boxes in two, `cuts` times. The result may be any arrangement that straight cuts
// produce.
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

// The layouts that exist for every world size.
inline const std::vector<std::string>& layout_names() {
  static const std::vector<std::string> names{"replicated", "dim-0", "dim-1", "2-D mesh", "uneven", "left-out ranks"};
  return names;
}

// Returns one of the layouts above. `size` has at least one dimension; a 1-dim tensor is cut along
// dimension 0 where the layout would cut dimension 1.
inline BoxLayout layout_of(const std::string& name, const Extents& size, int ranks) {
  const Box whole = Box::whole(size);
  const std::size_t second_dim = size.size() > 1 ? 1 : 0;
  const auto count = static_cast<std::size_t>(ranks);
  BoxLayout layout{name, std::vector<std::vector<Box>>(count)};
  const auto give = [&](std::size_t first_rank, const std::vector<Box>& boxes) {
    for (std::size_t i = 0; i < boxes.size(); ++i) layout.boxes[first_rank + i] = {boxes[i]};
  };
  if (name == "replicated") {
    layout.boxes.assign(count, {whole});
  } else if (name == "2-D mesh") {
    const int rows = ranks % 2 == 0 ? 2 : 1;
    std::size_t rank = 0;
    for (const Box& row : chunk_along(whole, 0, rows)) {
      give(rank, chunk_along(row, second_dim, ranks / rows));
      rank += count / static_cast<std::size_t>(rows);
    }
  } else if (name == "uneven") {
    // Shares grow with the rank, so low ranks may get nothing.
    const auto cut = [&](std::int64_t rank) { return size[0] * (rank * (rank + 1) / 2) / (ranks * (ranks + 1) / 2); };
    for (int rank = 0; rank < ranks; ++rank) {
      Box box = whole;
      box.offsets[0] = cut(rank);
      box.sizes[0] = cut(rank + 1) - cut(rank);
      if (!box.empty() || whole.empty()) layout.boxes[static_cast<std::size_t>(rank)] = {box};
    }
  } else if (name == "left-out ranks") {
    if (ranks == 1) return layout_of("dim-0", size, 1);
    give(1, chunk_along(whole, 0, ranks - 1));
  } else {
    give(0, chunk_along(whole, name == "dim-1" ? second_dim : 0, ranks));
  }
  return layout;
}

// Returns the layouts above and more that only planner tests use. A 0-dim tensor has only a few.
inline std::vector<BoxLayout> all_layouts(const Extents& size, int ranks, Random& random) {
  std::vector<BoxLayout> layouts;
  for (const std::string& name : layout_names())
    if (!size.empty() || name == "replicated") layouts.push_back(layout_of(name, size, ranks));
  for (std::size_t dim = 2; dim < size.size(); ++dim) {
    BoxLayout cut{"dim-" + std::to_string(dim), {}};
    for (const Box& box : chunk_along(Box::whole(size), dim, ranks)) cut.boxes.push_back({box});
    layouts.push_back(cut);
  }
  if (!size.empty() && ranks % 2 == 0) {
    BoxLayout hybrid{"replicated pairs", {}};
    for (const Box& row : chunk_along(Box::whole(size), 0, ranks / 2)) hybrid.boxes.insert(hybrid.boxes.end(), 2, {row});
    layouts.push_back(hybrid);
  }
  BoxLayout scattered{"any boxes", std::vector<std::vector<Box>>(static_cast<std::size_t>(ranks))};
  for (const Box& box : random_tiling(size, 3 * ranks, random))
    scattered.boxes[random.next() % static_cast<std::uint64_t>(ranks)].push_back(box);
  layouts.push_back(scattered);
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
