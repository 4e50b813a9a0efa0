// Arranges the ranks of a process group in a grid, with one group per axis.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/planning/device_mesh.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

// A handle: copies share the groups. Thread-safe.
class ProcessMesh {
 public:
  // Puts all ranks on one axis.
  explicit ProcessMesh(const ProcessGroup& group);
  // Arranges the ranks in row-major order: with shape {2, 2}, ranks 0 and 1 form row 0. Every rank
  // of `group` must pass the same shape. If several meshes have the same name, every rank must make
  // them in the same order. Errors contain `name`. Throws kInvalidArgument unless the product of
  // `shape` is the number of ranks in the group.
  ProcessMesh(const ProcessGroup& group, std::vector<std::int64_t> shape, std::vector<std::string> axis_names = {},
              const std::string& name = "mesh");

  // Makes a mesh of existing groups, one per axis. They may be groups made by
  // `ProcessGroup::from_c10d` with C10dGroups::world_ranks set. The group of an axis must list, in
  // the order of the axis, the ranks whose mesh coordinates differ from this rank's only along that
  // axis; otherwise throws kInvalidArgument.
  static ProcessMesh from_axes(const ProcessGroup& group, std::vector<ProcessGroup> axes, std::vector<std::string> axis_names = {});

  const DeviceMesh& mesh() const { return mesh_; }  // its ranks are world ranks, not ranks in the group
  const ProcessGroup& world() const { return world_; }
  std::size_t axes() const { return axes_.size(); }
  // Returns the group of the ranks that differ from this rank only along `axis`, in axis order.
  const ProcessGroup& axis(std::size_t axis) const { return axes_[axis]; }
  // Returns one axis as a mesh of its own ("tp" of {"dp", "tp"}). Throws kInvalidArgument if there
  // is no such axis.
  ProcessMesh along(const std::string& axis_name) const;
  // If `along` made this mesh, returns the mesh on which it was called. Otherwise returns this
  // mesh.
  const ProcessMesh& root() const { return root_ ? *root_ : *this; }
  // Returns the index in `root()` of the axis that `along` took; 0 if another function made it.
  std::size_t axis_of_root() const { return axis_of_root_; }
  // Returns `placements` on this mesh as placements on `root()`, with Replicate along the root's
  // other axes.
  std::vector<Placement> on_root(std::vector<Placement> placements) const;

 private:
  ProcessMesh(DeviceMesh mesh, ProcessGroup world, std::vector<ProcessGroup> axes);

  DeviceMesh mesh_;
  ProcessGroup world_;
  std::vector<ProcessGroup> axes_;
  std::shared_ptr<const ProcessMesh> root_;  // null: this mesh
  std::size_t axis_of_root_ = 0;
};

}  // namespace cairn::training
