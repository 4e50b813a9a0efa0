// A parameter of a parallel layer, and how it notices that it is used.
//
// As with sharded parameters (gather_on_use.hpp), the tensor that the layer holds stays the same object, of the whole size, without memory,
// and carries a dispatch key of its own (kParallelKey), which views inherit. The kernel behind that key comes before all others: where an
// operation is a product with the parameter, or a look-up in it, it computes with this rank's part and exchanges the rest. Operations that only
// make views pass. Others are refused: their result would be that of a part.
#pragma once

#include <memory>
#include <string>

#include <torch/types.h>

#include <cairn/planning/box.hpp>
#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

struct ParallelParameter {
  std::string name;
  torch::Tensor part;  // what the module registers, and the optimizer trains
  Extents size;        // of the whole
  std::int64_t dim;    // which is cut
  ProcessMesh mesh;    // of one axis
  bool gather_output;
  bool input_is_parallel;

  const ProcessGroup& group() const { return mesh.world(); }
};

// `whole`, a leaf, becomes a handle without memory; the parameter lives as long as it does.
void make_parallel(const torch::Tensor& whole, std::shared_ptr<const ParallelParameter> parameter);
// The parameter that `part` is registered for; null for other tensors.
std::shared_ptr<const ParallelParameter> parallel_parameter_of(const torch::Tensor& part);
// Whether `tensor` is such a handle, or a view of one.
bool is_parallel_handle(const torch::Tensor& tensor);

// --- the operations: parallel_operations.cpp --------------------------------------------------------------------------------

// An argument of an operation.
struct ParallelArgument {
  std::shared_ptr<const ParallelParameter> parameter;
  bool transposed = false;
  bool detached = false;

  // This rank's part of it.
  torch::Tensor local() const;
  // Which of its dimensions is cut.
  std::int64_t dim() const { return transposed ? 1 - parameter->dim : parameter->dim; }
};

// input · weight; `weight` has two dimensions.
torch::Tensor parallel_product(const torch::Tensor& input, const ParallelArgument& weight);
// beta · bias + alpha · input · weight. An undefined bias: none. `parallel_bias` takes its place if it is there.
torch::Tensor parallel_affine(const torch::Tensor& bias, const ParallelArgument* parallel_bias, const torch::Tensor& input,
                              const ParallelArgument& weight, const at::Scalar& beta, const at::Scalar& alpha);
// What is added to a column-wise layer's output.
torch::Tensor parallel_bias(const torch::Tensor& output, const ParallelArgument& bias);
torch::Tensor parallel_embedding(const ParallelArgument& weight, const torch::Tensor& indices, std::int64_t padding_index);

}  // namespace cairn::training
