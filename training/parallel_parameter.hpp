// A parameter of a tensor-parallel layer, and the operations that use it.
//
// As with sharded parameters (gather_on_use.cpp), the layer's tensor remains the same full-size
// object, without memory. It carries a dispatch key, kParallelKey, which its views inherit. The
// kernel for that key runs before all others. For a product with the parameter, or a look-up in it,
// the kernel computes with this rank's part and exchanges results with the other ranks. Operations
// that only make views are allowed. The kernel refuses all other operations, since their results
// would cover this rank's part only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include <cairn/planning/box.hpp>
#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

struct ParallelParameter {
  std::string name;
  torch::Tensor part;  // the tensor that the module registers and the optimizer trains
  Extents size;        // the size of the whole parameter
  std::int64_t dim;    // the dimension that is cut
  ProcessMesh mesh;    // has one axis
  bool gather_output;
  bool input_is_parallel;

  const ProcessGroup& group() const { return mesh.world(); }
};

// Turns `whole`, a leaf tensor, into a handle without memory. The handle keeps `parameter` alive.
void make_parallel(const torch::Tensor& whole, std::shared_ptr<const ParallelParameter> parameter);
// Returns the parameter that `part` is registered for; null for other tensors.
std::shared_ptr<const ParallelParameter> parallel_parameter_of(const torch::Tensor& part);
// Returns whether `tensor` is such a handle or a view of one.
bool is_parallel_handle(const torch::Tensor& tensor);

// Calls declare_shard for `shard`, the part of `cut` that `placements` on `mesh` give this rank. If
// `cut` is itself a part of a parallel parameter, declares `shard` as a part of that parameter.
void declare_what_is_left(const torch::Tensor& shard, const torch::Tensor& cut, const ProcessMesh& mesh,
                          const std::vector<Placement>& placements);

// --- the operations: parallel_operations.cpp -----------------------------------------------------

// A parallel parameter as the argument of an operation.
struct ParallelArgument {
  std::shared_ptr<const ParallelParameter> parameter;
  bool transposed = false;
  bool detached = false;

  // Returns this rank's part of the argument.
  torch::Tensor local() const;
  // Returns the dimension of the argument that is cut.
  std::int64_t dim() const { return transposed ? 1 - parameter->dim : parameter->dim; }
};

// Returns input · weight. `weight` has two dimensions.
torch::Tensor parallel_product(const torch::Tensor& input, const ParallelArgument& weight);
// Returns beta · bias + alpha · input · weight. An undefined `bias` counts as zero. If
// `parallel_bias` is not null, it replaces `bias`.
torch::Tensor parallel_affine(const torch::Tensor& bias, const ParallelArgument* parallel_bias, const torch::Tensor& input,
                              const ParallelArgument& weight, const at::Scalar& beta, const at::Scalar& alpha);
// Returns the tensor to add to the output of a column-wise layer.
torch::Tensor parallel_bias(const torch::Tensor& output, const ParallelArgument& bias);
torch::Tensor parallel_embedding(const ParallelArgument& weight, const torch::Tensor& indices, std::int64_t padding_index);

}  // namespace cairn::training
