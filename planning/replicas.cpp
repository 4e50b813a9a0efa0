#include <cairn/planning/replicas.hpp>

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

__extension__ typedef unsigned __int128 Wide;  // bytes times rows

class Assigner {
 public:
  Assigner(std::vector<std::uint64_t>& load_bytes, std::uint64_t split_above_bytes)
      : load_(load_bytes), split_above_bytes_(split_above_bytes) {}

  void place(const Replica& replica) {
    const auto begin = static_cast<std::uint32_t>(result_.placements.size());
    const bool split = !replica.lowest_only && replica.chunk && split_above_bytes_ > 0 && replica.count > 1 &&
                       replica.bytes >= split_above_bytes_ && place_parts(replica);
    if (!split) place_whole(replica);
    result_.placed.push_back({replica.id, begin, static_cast<std::uint32_t>(result_.placements.size()), split});
  }

  Assignment take() { return std::move(result_); }

 private:
  void place_whole(const Replica& replica) {
    std::uint32_t holder = 0;
    if (!replica.lowest_only) {
      for (std::uint32_t i = 1; i < replica.count; ++i)
        // Among equals the lowest rank writes, so that every run gives the same plan.
        if (load_[replica.ranks[i]] < load_[replica.ranks[holder]]) holder = i;
    }
    load_[replica.ranks[holder]] += replica.bytes + kItemOverheadBytes;
    result_.placements.push_back({holder, {}});
  }

  // Prefers rows (dim 0), because only parts along dim 0 are contiguous. A tensor with too few rows
  // is split along its longest dimension.
  static std::size_t dim_to_split(const Extents& sizes, std::uint64_t parts) {
    if (static_cast<std::uint64_t>(sizes[0]) >= parts) return 0;
    return static_cast<std::size_t>(std::max_element(sizes.begin(), sizes.end()) - sizes.begin());
  }

  bool place_parts(const Replica& replica) {
    const Box& chunk = *replica.chunk;
    if (chunk.sizes.empty()) return false;
    // Parts much smaller than the split threshold would cost more in metadata than they save.
    const std::uint64_t part_min_bytes = std::max<std::uint64_t>(1, split_above_bytes_ / 4);
    std::uint64_t parts = std::min<std::uint64_t>(replica.count, std::max<std::uint64_t>(2, replica.bytes / part_min_bytes));
    const std::size_t dim = dim_to_split(chunk.sizes, parts);
    const auto rows = static_cast<std::uint64_t>(chunk.sizes[dim]);
    parts = std::min(parts, rows);
    if (parts < 2) return false;

    // The holders with the fewest bytes take part, as long as each of them gets enough to write.
    holders_.resize(replica.count);
    for (std::uint32_t i = 0; i < replica.count; ++i) holders_[i] = i;
    const auto fewer = [&](std::uint32_t a, std::uint32_t b) {
      const std::uint64_t load_a = load_[replica.ranks[a]];
      const std::uint64_t load_b = load_[replica.ranks[b]];
      return load_a != load_b ? load_a < load_b : a < b;
    };
    std::partial_sort(holders_.begin(), holders_.begin() + static_cast<std::ptrdiff_t>(parts), holders_.end(), fewer);
    const auto load_of = [&](std::uint64_t i) { return load_[replica.ranks[holders_[i]]]; };
    Wide total = replica.bytes;  // bytes of the participating holders plus the replica
    for (std::uint64_t i = 0; i < parts; ++i) total += load_of(i);
    // Holders are ordered by load: the last one has the most. It drops out if the others' level
    // leaves it less than half of a minimal part.
    while (parts >= 2) {
      const Wide needed = static_cast<Wide>(load_of(parts - 1)) + part_min_bytes / 2;
      if (total / parts >= needed) break;
      total -= load_of(--parts);
    }
    if (parts < 2) return false;
    const auto level = static_cast<std::uint64_t>(total / parts);

    // Rows in order of rank: higher ranks hold later rows. Each boundary is rounded from the exact
    // sum, so that rounding errors do not accumulate.
    std::sort(holders_.begin(), holders_.begin() + static_cast<std::ptrdiff_t>(parts));
    Wide given_bytes = 0;
    std::uint64_t first_row = 0;
    const std::uint64_t row_bytes = std::max<std::uint64_t>(1, replica.bytes / rows);
    std::uint32_t made = 0;
    for (std::uint64_t i = 0; i < parts; ++i) {
      const std::uint64_t load = load_of(i);
      given_bytes += level > load ? level - load : 0;
      std::uint64_t end_row =
          i + 1 == parts ? rows : static_cast<std::uint64_t>((given_bytes * rows + replica.bytes / 2) / replica.bytes);
      end_row = std::min(end_row, rows);
      // Rounding may leave a holder without rows.
      if (end_row <= first_row) continue;
      HolderShare placement{holders_[i], chunk};
      placement.part.offsets[dim] += static_cast<std::int64_t>(first_row);
      placement.part.sizes[dim] = static_cast<std::int64_t>(end_row - first_row);
      load_[replica.ranks[holders_[i]]] += (end_row - first_row) * row_bytes + kItemOverheadBytes;
      result_.placements.push_back(std::move(placement));
      first_row = end_row;
      ++made;
    }
    return made > 0;
  }

  std::vector<std::uint64_t>& load_;
  const std::uint64_t split_above_bytes_;
  Assignment result_;
  std::vector<std::uint32_t> holders_;  // scratch
};

}  // namespace

Assignment assign_replicas(std::vector<Replica> replicas, std::vector<std::uint64_t>& load_bytes, std::uint64_t split_above_bytes) {
  const auto larger = [](const Replica& a, const Replica& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.id < b.id; };
  // Largest first: small ones then fill the differences that the large ones leave.
  if (!std::is_sorted(replicas.begin(), replicas.end(), larger)) std::sort(replicas.begin(), replicas.end(), larger);
  Assigner assigner(load_bytes, split_above_bytes);
  for (const Replica& replica : replicas) assigner.place(replica);
  return assigner.take();
}

}  // namespace cairn
