// A tensor distributed over a mesh of ranks; each rank holds a part. Modelled on PyTorch's DTensor.
//
//   auto rows = DistributedTensor::distribute(whole, mesh, {Shard{0}});  // each rank gets its rows
//   auto columns = rows.redistribute({Shard{1}});  // the same tensor, cut by columns
//   columns.full_tensor();                         // the whole, on every rank
//   cairn::save({{"table", rows}}, id);            // loads with any other placements
//
// Along each mesh axis, a tensor is cut in one dimension (Shard), identical on all ranks
// (Replicate), or the sum of the ranks' tensors (Partial). `local_box` computes the cuts: chunks
// are those of torch.chunk, so the last ranks may get less or nothing. If several axes cut the same
// dimension, each axis cuts the chunk that results from the axes before it.
//
// A DistributedTensor is a handle; copies share the local tensor. Functions that send data between
// ranks are collectives: all ranks of the mesh must call them in the same order with the same
// arguments. They throw what ProcessGroup throws. After a failure, the tensor is unchanged.
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
  // Wraps `local`, this rank's part of a tensor of size `size`. The result shares `local`. Sends
  // nothing. Throws kInvalidArgument if the number of placements is wrong, a dimension is out of
  // range, or `local` does not have the size of `box()`.
  static DistributedTensor from_local(torch::Tensor local, const Extents& size, const ProcessMesh& mesh,
                                      std::vector<TensorPlacement> placements);
  // Distributes the tensor that the mesh's first rank passes. Other ranks must pass a tensor of the
  // same size and type, whose values are ignored. The parts are copies that are not part of an
  // autograd graph. Along a Partial axis, the first rank holds the values and the other ranks hold
  // zeros. A collective.
  static DistributedTensor distribute(const torch::Tensor& whole, const ProcessMesh& mesh, std::vector<TensorPlacement> placements);

  const Extents& size() const { return size_; }  // the size of the whole tensor
  const ProcessMesh& mesh() const { return mesh_; }
  const std::vector<TensorPlacement>& placements() const { return placements_; }  // Shard dimensions are 0 or more
  const torch::Tensor& local() const { return local_; }
  // Returns the position of the local tensor in the whole.
  Box box() const;

  // Returns the same values with other placements. The result shares the local tensor if no
  // placement changes. Differentiable. The gradient has the placements of its tensor, except that
  // it is Replicate along the axes where the tensor is Partial. A collective; the backward pass of
  // it is a collective, too.
  DistributedTensor redistribute(std::vector<TensorPlacement> placements) const;
  // Returns the whole tensor on every rank. Differentiable as `redistribute` is. A collective.
  torch::Tensor full_tensor() const;
  // Returns the local tensor for further computation. `gradient` names the placements of the
  // gradients that come back. Pass {Partial{}} if each rank uses a Replicate tensor for a different
  // part of the work, because the ranks' gradients must then be summed. Sends nothing; its backward
  // is a collective.
  torch::Tensor to_local(std::vector<TensorPlacement> gradient) const;

  // Returns a sharded tensor for a state dict; a load fills `local()` in place. If `mesh()` is one
  // axis of a larger mesh, the sharded tensor lies on the larger mesh. Throws kUnsupported for a
  // Partial tensor: redistribute it first.
  ShardedTensor sharded() const;
  operator Value() const { return sharded(); }  // NOLINT: state dicts accept it
  // From now on, state dicts of modules hold `sharded()` in place of `local()`, and optimizer state
  // of the same shape is sharded in the same way. See declare_shard. Throws as `sharded` does.
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
