// A tensor that lies on a mesh of ranks, each of which has a part. After PyTorch's DTensor.
//
//   auto rows = DistributedTensor::distribute(whole, mesh, {Shard{0}});    // each rank its rows
//   auto columns = rows.redistribute({Shard{1}});                          // the same tensor, cut the other way
//   columns.full_tensor();                                                 // whole, on every rank
//   cairn::save({{"table", rows}}, id);                                    // and loaded with any other placements
//
// Along each axis of the mesh a tensor is cut in one dimension (Shard), the same on all ranks (Replicate), or the sum of what the ranks
// have (Partial). Cuts are those of `local_box`: chunks as torch.chunk makes them, the last ranks with less or nothing; axes that cut the
// same dimension cut it one after the other.
//
// A DistributedTensor is a handle; copies share the local tensor. What sends data between ranks is a collective: all ranks of the mesh
// call it, in the same order, with the same arguments. Failures are those of ProcessGroup; after one, the tensor is as it was.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <torch/types.h>

#include <cairn/state/state_dict.hpp>
#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

struct Partial {
  friend bool operator==(const Partial&, const Partial&) { return true; }
};
using TensorPlacement = std::variant<Shard, Replicate, Partial>;  // one per mesh axis
std::string to_string(const TensorPlacement& placement);          // "Shard(0)", "Replicate()", "Partial()"

class DistributedTensor {
 public:
  // `local` is this rank's part of a tensor of size `size`, and stays shared. Sends nothing. Throws kInvalidArgument for a wrong number of
  // placements, a dimension out of range, or a part that has not the size of `box()`.
  static DistributedTensor from_local(torch::Tensor local, const Extents& size, const ProcessMesh& mesh,
                                      std::vector<TensorPlacement> placements);
  // What the mesh's first rank has counts; the others pass a tensor of the same size and type. The parts are copies, without a graph.
  // Partial: the first rank of the axis has all, the others zeros. A collective.
  static DistributedTensor distribute(const torch::Tensor& whole, const ProcessMesh& mesh, std::vector<TensorPlacement> placements);

  const Extents& size() const { return size_; }  // of the whole
  const ProcessMesh& mesh() const { return mesh_; }
  const std::vector<TensorPlacement>& placements() const { return placements_; }  // dimensions count from the first
  const torch::Tensor& local() const { return local_; }
  // Where the local tensor lies within the whole.
  Box box() const;

  // The same values with other placements; the local tensor is shared where nothing changes, and new elsewhere. Gradients go back the same way:
  // the gradient of a tensor is laid out as the tensor is, that of a Partial one is Replicate. A collective, and so is its backward.
  DistributedTensor redistribute(std::vector<TensorPlacement> placements) const;
  // The whole, on every rank; differentiable as `redistribute` is. A collective.
  torch::Tensor full_tensor() const;
  // The local tensor for computing with, whose gradients come laid out as `gradient`: where each rank uses a Replicate tensor for another part of
  // the work, what comes are addends, {Partial{}}. Sends nothing; its backward is a collective.
  torch::Tensor to_local(std::vector<TensorPlacement> gradient) const;

  // As a state dict holds it: a sharded tensor that knows the mesh; loading fills `local()` in place. On the mesh that `mesh()` is an axis of, if it
  // is one. Throws kUnsupported for a Partial tensor: redistribute it first.
  ShardedTensor sharded() const;
  operator Value() const { return sharded(); }  // NOLINT: so that state dicts take it
  // State dicts of modules that register `local()`, and of optimizers that train it, hold it as `sharded()` from now on: see
  // declare_shard. Throws as `sharded` does.
  void declare() const;

 private:
  DistributedTensor(torch::Tensor local, Extents size, ProcessMesh mesh, std::vector<TensorPlacement> placements)
      : local_(std::move(local)), size_(std::move(size)), mesh_(std::move(mesh)), placements_(std::move(placements)) {}

  torch::Tensor local_;
  Extents size_;
  ProcessMesh mesh_;
  std::vector<TensorPlacement> placements_;
};

}  // namespace cairn::training
