// Ranks arranged in a grid, and how a tensor lies on it. After PyTorch's DeviceMesh and placements. Needs no device and no process
// group.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn {

struct Shard {
  std::int64_t dim = 0;  // of the tensor; negative counts from the last
  friend bool operator==(const Shard& a, const Shard& b) { return a.dim == b.dim; }
};
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) { return true; }
};
using Placement = std::variant<Shard, Replicate>;   // one per mesh axis
std::string to_string(const Placement& placement);  // "Shard(0)", "Replicate()"

// Immutable. Copies share one list of ranks: copying is O(1).
class DeviceMesh {
 public:
  // Ranks 0, 1, … in row-major order over `shape` (the sizes of the axes). Throws kInvalidArgument for an empty shape, a size
  // below 1, or a number of names other than of axes.
  explicit DeviceMesh(std::vector<std::int64_t> shape, std::vector<std::string> axis_names = {});
  // Any ranks, each once, row-major over `shape`; ranks may be missing from the mesh. Throws also for a negative or repeated rank,
  // and for a number of ranks that is not the product of `shape`.
  DeviceMesh(std::vector<std::int64_t> shape, std::vector<int> ranks, std::vector<std::string> axis_names = {});
  // So that DeviceMesh({2, 2}, {"dp", "tp"}) and DeviceMesh({2}, {4, 6}) say which of the above they mean.
  DeviceMesh(std::vector<std::int64_t> shape, std::initializer_list<const char*> axis_names)
      : DeviceMesh(std::move(shape), std::vector<std::string>(axis_names.begin(), axis_names.end())) {}
  DeviceMesh(std::vector<std::int64_t> shape, std::initializer_list<int> ranks)
      : DeviceMesh(std::move(shape), std::vector<int>(ranks)) {}

  const std::vector<std::int64_t>& shape() const { return grid_->shape; }
  const std::vector<int>& ranks() const { return grid_->ranks; }
  const std::vector<std::string>& axis_names() const { return grid_->axis_names; }
  // Returns one index per axis; nothing if `rank` is not in the mesh. O(axes).
  std::optional<std::vector<std::int64_t>> coordinate(int rank) const;

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.grid_ == b.grid_ || (a.shape() == b.shape() && a.ranks() == b.ranks() && a.axis_names() == b.axis_names());
  }

 private:
  struct Grid {
    std::vector<std::int64_t> shape;
    std::vector<int> ranks;
    std::vector<std::string> axis_names;
    std::unordered_map<int, std::int64_t> positions;  // in `ranks`; empty where those are 0, 1, …
  };
  std::shared_ptr<const Grid> grid_;
};

// Returns the part of a tensor of this size that `rank` holds; nothing if `rank` is not in the mesh. For each axis in order with
// Shard(dim), the dim is cut into chunks of ceil(n / axis size), as torch.chunk does; later ranks may get less or nothing (their
// box begins at the dim's end, as in PyTorch). Axes that cut the same dim cut it one after the other, from left to right. Throws
// kInvalidArgument for a wrong number of placements or a dim out of range. O(dims + axes), however many ranks there are.
std::optional<Box> local_box(const Extents& size, const DeviceMesh& mesh, const std::vector<Placement>& placements, int rank);

}  // namespace cairn
