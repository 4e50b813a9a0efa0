// A grid of ranks, and the placement of a tensor on that grid. Modelled on PyTorch's DeviceMesh and
// placements, but needs neither a device nor a process group.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn {

struct Shard {
  std::int64_t dim = 0;  // dimension of the tensor; a negative number counts from the end
  friend bool operator==(const Shard& a, const Shard& b) { return a.dim == b.dim; }
};
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) { return true; }
};
using Placement = std::variant<Shard, Replicate>;   // one per mesh axis
std::string to_string(const Placement& placement);  // "Shard(0)", "Replicate()"

// Immutable. Copies share one list of ranks, so copying is O(1).
class DeviceMesh {
 public:
  // Arranges ranks 0, 1, … in row-major order. `shape` has the sizes of the axes. Throws
  // kInvalidArgument if `shape` is empty or a size is below 1. `axis_names` must be empty or have
  // one distinct name for each axis; otherwise throws kInvalidArgument.
  explicit DeviceMesh(const std::vector<std::int64_t>& shape, std::vector<std::string> axis_names = {});
  // Arranges `ranks` in row-major order. A mesh need not contain all ranks of the job. Throws as
  // above, and throws kInvalidArgument if a rank is negative or repeated, or if the number of ranks
  // is not the product of `shape`.
  DeviceMesh(std::vector<std::int64_t> shape, std::vector<int> ranks, std::vector<std::string> axis_names = {});
  // Without these two constructors, DeviceMesh({2, 2}, {"dp", "tp"}) and DeviceMesh({2}, {4, 6})
  // would be ambiguous.
  DeviceMesh(const std::vector<std::int64_t>& shape, std::initializer_list<const char*> axis_names)
      : DeviceMesh(shape, std::vector<std::string>(axis_names.begin(), axis_names.end())) {}
  DeviceMesh(const std::vector<std::int64_t>& shape, std::initializer_list<int> ranks)
      : DeviceMesh(shape, std::vector<int>(ranks)) {}

  const std::vector<std::int64_t>& shape() const { return grid_->shape; }
  const std::vector<int>& ranks() const { return grid_->ranks; }
  const std::vector<std::string>& axis_names() const { return grid_->axis_names; }
  // Returns one index per axis, or nothing if `rank` is not in the mesh. O(axes).
  std::optional<std::vector<std::int64_t>> coordinate(int rank) const;

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.grid_ == b.grid_ || (a.shape() == b.shape() && a.ranks() == b.ranks() && a.axis_names() == b.axis_names());
  }

 private:
  struct Grid {
    std::vector<std::int64_t> shape;
    std::vector<int> ranks;
    std::vector<std::string> axis_names;
    std::unordered_map<int, std::int64_t> positions;  // indices into `ranks`; empty if the ranks are 0, 1, …
  };
  std::shared_ptr<const Grid> grid_;
};

// Returns the part of a tensor of this size that `rank` holds, or nothing if `rank` is not in the
// mesh. A mesh axis with placement Shard(dim) cuts the n elements of dimension `dim` into chunks of
// ceil(n / axis size), as torch.chunk does. The last chunks may be smaller or empty. An empty box
// begins at the end of the dimension, as in PyTorch. If several mesh axes cut the same dimension,
// they cut it in order: each axis cuts the chunk that results from the axes before it. Throws
// kInvalidArgument if the number of placements is wrong or a dimension is out of range.
// O(dimensions + axes), whatever the number of ranks.
std::optional<Box> local_box(const Extents& size, const DeviceMesh& mesh, const std::vector<Placement>& placements, int rank);

}  // namespace cairn
