#include <cairn/training/process_mesh.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>

namespace cairn::training {
namespace {

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

}  // namespace

ProcessMesh::ProcessMesh(const ProcessGroup& group) : mesh_({group.size()}, group.ranks()), world_(group), axes_{group} {}

ProcessMesh::ProcessMesh(const ProcessGroup& group, std::vector<std::int64_t> shape, std::vector<std::string> axis_names,
                         const std::string& name)
    : mesh_(mesh_of(group, std::move(shape), std::move(axis_names))), world_(group) {
  if (mesh_.shape().size() == 1) {
    axes_.push_back(group);
    return;
  }
  // The step between ranks along an axis is the product of the sizes of the later axes.
  std::int64_t step = group.size();
  for (std::size_t axis = 0; axis < mesh_.shape().size(); ++axis) {
    const std::int64_t count = mesh_.shape()[axis];
    step /= count;
    const std::int64_t first = group.rank() - group.rank() / step % count * step;
    std::vector<int> ranks;
    for (std::int64_t i = 0; i < count; ++i) ranks.push_back(static_cast<int>(first + i * step));
    axes_.push_back(group.subgroup(ranks, name + "/axis" + std::to_string(axis) + "/from" + std::to_string(first)));
  }
}

ProcessMesh::ProcessMesh(DeviceMesh mesh, ProcessGroup world, std::vector<ProcessGroup> axes)
    : mesh_(std::move(mesh)), world_(std::move(world)), axes_(std::move(axes)) {}

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
