#include <cairn/training/process_mesh.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>

namespace cairn::training {
namespace {

// The mesh has world ranks, because plans and checkpoints use those.
DeviceMesh mesh_of(const ProcessGroup& group, std::vector<std::int64_t> shape, std::vector<std::string> axis_names) {
  std::int64_t places = 1;
  std::string text;
  for (const std::int64_t size : shape) {
    places *= size;
    text += (text.empty() ? "" : " x ") + std::to_string(size);
  }
  if (shape.empty() || places != group.size()) {
    throw Error(ErrorCode::kInvalidArgument, "process mesh: a mesh of " + (text.empty() ? "no axes" : text) + " has not as many " +
                                                 "places as the group has ranks, " + std::to_string(group.size()));
  }
  return DeviceMesh(std::move(shape), group.ranks(), std::move(axis_names));
}

// Returns, for each axis, the ranks of the mesh's group that differ from `rank` only along it.
std::vector<std::vector<int>> ranks_by_axis(const std::vector<std::int64_t>& shape, int rank) {
  std::vector<std::vector<int>> by_axis(shape.size());
  // The step between ranks along an axis is the product of the sizes of the later axes.
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const std::int64_t count = shape[axis];
    const std::int64_t first = rank - rank / step % count * step;
    for (std::int64_t i = 0; i < count; ++i) by_axis[axis].push_back(static_cast<int>(first + i * step));
    step *= count;
  }
  return by_axis;
}

}  // namespace

ProcessMesh::ProcessMesh(const ProcessGroup& group) : mesh_({group.size()}, group.ranks()), world_(group), axes_{group} {}

ProcessMesh::ProcessMesh(const ProcessGroup& group, std::vector<std::int64_t> shape, std::vector<std::string> axis_names,
                         const std::string& name)
    : mesh_(mesh_of(group, std::move(shape), std::move(axis_names))), world_(group) {
  if (mesh_.shape().size() == 1) {
    axes_.push_back(group);
    return;
  }
  const auto by_axis = ranks_by_axis(mesh_.shape(), group.rank());
  for (std::size_t axis = 0; axis < by_axis.size(); ++axis) {
    axes_.push_back(
        // The first rank tells apart the groups of one axis, which share a store.
        group.subgroup(by_axis[axis], name + "/axis" + std::to_string(axis) + "/from" + std::to_string(by_axis[axis].front())));
  }
}

ProcessMesh ProcessMesh::from_axes(const ProcessGroup& group, std::vector<ProcessGroup> axes, std::vector<std::string> axis_names) {
  std::vector<std::int64_t> shape;
  for (const ProcessGroup& axis : axes) shape.push_back(axis.size());
  DeviceMesh mesh = mesh_of(group, shape, std::move(axis_names));
  const auto by_axis = ranks_by_axis(shape, group.rank());
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    std::vector<int> wanted;
    for (const int rank : by_axis[axis]) wanted.push_back(group.ranks()[static_cast<std::size_t>(rank)]);
    // Compared on each rank: groups made in another order would exchange data with the wrong ranks.
    if (axes[axis].ranks() != wanted)
      throw Error(ErrorCode::kInvalidArgument,
                  "process mesh: the group of axis " + std::to_string(axis) + " has " + name_ranks(axes[axis].ranks()) +
                      " of the world, but on this rank that axis has " + name_ranks(wanted) + "; see C10dGroups::world_ranks");
  }
  return ProcessMesh(std::move(mesh), group, std::move(axes));
}

ProcessMesh::ProcessMesh(DeviceMesh mesh, ProcessGroup world, std::vector<ProcessGroup> axes)
    : mesh_(std::move(mesh)), world_(std::move(world)), axes_(std::move(axes)) {}

// A mesh of one axis remembers the whole mesh, so that checkpoints can say where parts lie in both.
ProcessMesh ProcessMesh::along(const std::string& axis_name) const {
  const auto& names = mesh_.axis_names();
  const auto found = std::find(names.begin(), names.end(), axis_name);
  if (found == names.end()) throw Error(ErrorCode::kInvalidArgument, "process mesh: no axis has the name \"" + axis_name + '"');
  if (root_) return *this;
  const auto axis = static_cast<std::size_t>(found - names.begin());
  const ProcessGroup& group = axes_[axis];
  ProcessMesh taken(DeviceMesh({group.size()}, group.ranks(), {axis_name}), group, {group});
  taken.root_ = std::make_shared<const ProcessMesh>(*this);
  taken.axis_of_root_ = axis;
  return taken;
}

std::vector<Placement> ProcessMesh::on_root(std::vector<Placement> placements) const {
  if (!root_) return placements;
  std::vector<Placement> expanded(root_->axes(), Replicate{});
  expanded[axis_of_root_] = placements.front();
  return expanded;
}

}  // namespace cairn::training
