#include <cairn/planning/device_mesh.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// Bounds the memory that a shape can ask for.
constexpr std::int64_t kRanksMax = std::int64_t{1} << 24;

[[noreturn]] void refuse_mesh(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, "device mesh: " + why); }

// Returns the number of ranks in a mesh of this shape.
// Runs before the list of ranks is allocated, which may be as long as the product.
std::int64_t ranks_of(const std::vector<std::int64_t>& shape) {
  if (shape.empty()) refuse_mesh("the shape is empty; give the size of at least one axis");
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 1)
      refuse_mesh("the shape " + to_string(Extents(shape)) + " has an axis of size " + std::to_string(size) + "; sizes begin at 1");
    // Divides, because the product may overflow.
    if (size > kRanksMax / count)
      refuse_mesh("the shape " + to_string(Extents(shape)) + " has more than " + std::to_string(kRanksMax) + " ranks");
    count *= size;
  }
  return count;
}

std::vector<int> first_ranks(const std::vector<std::int64_t>& shape) {
  std::vector<int> ranks(static_cast<std::size_t>(ranks_of(shape)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::string to_string(const Placement& placement) {
  if (const auto* shard = std::get_if<Shard>(&placement)) return "Shard(" + std::to_string(shard->dim) + ")";
  return "Replicate()";
}

DeviceMesh::DeviceMesh(const std::vector<std::int64_t>& shape, std::vector<std::string> axis_names)
    : DeviceMesh(shape, first_ranks(shape), std::move(axis_names)) {}

DeviceMesh::DeviceMesh(std::vector<std::int64_t> shape, std::vector<int> ranks, std::vector<std::string> axis_names) {
  auto grid = std::make_shared<Grid>();
  grid->shape = std::move(shape);
  grid->ranks = std::move(ranks);
  grid->axis_names = std::move(axis_names);
  const std::int64_t count = ranks_of(grid->shape);
  if (count != static_cast<std::int64_t>(grid->ranks.size())) {
    refuse_mesh("the shape " + to_string(Extents(grid->shape)) + " needs " + std::to_string(count) + " ranks, but " +
                std::to_string(grid->ranks.size()) + " are given");
  }
  bool in_order = true;
  for (std::int64_t position = 0; position < count; ++position) {
    const int rank = grid->ranks[static_cast<std::size_t>(position)];
    if (rank < 0) refuse_mesh("rank " + std::to_string(rank) + " is negative");
    if (!grid->positions.emplace(rank, position).second) refuse_mesh("rank " + std::to_string(rank) + " is given twice");
    in_order = in_order && rank == position;
  }
  // The usual mesh needs no table: position and rank are the same.
  if (in_order) grid->positions = {};
  const auto& names = grid->axis_names;
  if (!names.empty() && names.size() != grid->shape.size()) {
    refuse_mesh(std::to_string(names.size()) + " names for " + std::to_string(grid->shape.size()) +
                " axes; give one for each, or none");
  }
  if (std::unordered_set<std::string>(names.begin(), names.end()).size() != names.size())
    refuse_mesh("two axes have the same name");
  grid_ = std::move(grid);
}

std::optional<std::vector<std::int64_t>> DeviceMesh::coordinate(int rank) const {
  const std::vector<std::int64_t>& shape = grid_->shape;
  std::int64_t position = rank;
  if (!grid_->positions.empty()) {
    const auto found = grid_->positions.find(rank);
    if (found == grid_->positions.end()) return std::nullopt;
    position = found->second;
  } else if (rank < 0 || static_cast<std::size_t>(rank) >= grid_->ranks.size()) {
    return std::nullopt;
  }
  std::vector<std::int64_t> coordinate(shape.size());
  // Row-major: the last axis varies fastest.
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    coordinate[axis] = position % shape[axis];
    position /= shape[axis];
  }
  return coordinate;
}

std::optional<Box> local_box(const Extents& size, const DeviceMesh& mesh, const std::vector<Placement>& placements, int rank) {
  // All arguments are checked before the rank is looked up: the error must not depend on the rank.
  if (placements.size() != mesh.shape().size()) {
    throw Error(ErrorCode::kInvalidArgument, "placements: " + std::to_string(placements.size()) + " are given for a mesh with " +
                                                 std::to_string(mesh.shape().size()) + " axes; give one for each axis");
  }
  const auto dims = static_cast<std::int64_t>(size.size());
  for (const Placement& placement : placements) {
    const auto* shard = std::get_if<Shard>(&placement);
    if (shard != nullptr && (shard->dim < -dims || shard->dim >= dims)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "placements: " + to_string(placement) + " is out of range for a tensor of size " + to_string(size));
    }
  }
  const auto coordinate = mesh.coordinate(rank);
  if (!coordinate) return std::nullopt;

  Box box = Box::whole(size);
  // From left to right: each axis cuts what the axes before it have left.
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const auto* shard = std::get_if<Shard>(&placements[axis]);
    if (shard == nullptr) continue;
    const auto dim = static_cast<std::size_t>(shard->dim < 0 ? shard->dim + dims : shard->dim);
    const std::int64_t held = box.sizes[dim];
    const std::int64_t parts = mesh.shape()[axis];
    // Rounds up without adding before the division, which could overflow.
    const std::int64_t chunk = held / parts + (held % parts != 0 ? 1 : 0);
    const std::int64_t begin = std::min(held, chunk * (*coordinate)[axis]);
    box.offsets[dim] += begin;
    box.sizes[dim] = std::min(chunk, held - begin);
  }
  for (std::size_t dim = 0; dim < size.size(); ++dim) {
    // PyTorch places empty parts at the end of the dimension.
    if (box.sizes[dim] == 0) box.offsets[dim] = size[dim];
  }
  return box;
}

}  // namespace cairn
