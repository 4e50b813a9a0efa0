// Ranks of a process group in a grid, with a group for each axis.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/state/device_mesh.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::training {

// A handle: copies share the groups. Thread-safe.
class ProcessMesh {
 public:
  // All ranks on one axis.
  explicit ProcessMesh(const ProcessGroup& group);
  // Row-major over `shape`: {2, 2} puts ranks 0 and 1 into row 0. Every rank of `group` calls it with the same shape; `name` is for
  // messages; meshes of one name are made in the same order on all ranks. Throws kInvalidArgument for a shape that does not have as many places as the group has
  // ranks.
  ProcessMesh(const ProcessGroup& group, std::vector<std::int64_t> shape, std::vector<std::string> axis_names = {},
              const std::string& name = "mesh");

  const DeviceMesh& mesh() const { return mesh_; }  // of world ranks
  const ProcessGroup& world() const { return world_; }
  std::size_t axes() const { return axes_.size(); }
  // The ranks that differ from this one along `axis` only, in its order.
  const ProcessGroup& axis(std::size_t axis) const { return axes_[axis]; }
  // One axis as a mesh of its own, for what takes one ("tp" of {"dp", "tp"}). Throws kInvalidArgument if there is no such axis.
  ProcessMesh along(const std::string& axis_name) const;
  // The mesh that this one was taken from by `along`; else this one.
  const ProcessMesh& root() const { return root_ ? *root_ : *this; }
  std::size_t axis_of_root() const { return axis_of_root_; }  // which one `along` took
  // `placements` on this mesh as placements on `root()`: alike along its other axes.
  std::vector<Placement> on_root(std::vector<Placement> placements) const;

 private:
  ProcessMesh(DeviceMesh mesh, ProcessGroup world, std::vector<ProcessGroup> axes);

  DeviceMesh mesh_;
  ProcessGroup world_;
  std::vector<ProcessGroup> axes_;
  std::shared_ptr<const ProcessMesh> root_;  // null: itself
  std::size_t axis_of_root_ = 0;
};

}  // namespace cairn::training
