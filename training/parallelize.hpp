// Tensor-parallel training: cuts layers over ranks that all work on the same input. Modelled on
// PyTorch's parallelize_module.
//
//   training::ProcessMesh mesh(group, {2, 2}, {"dp", "tp"});
//   Net model(…);                                              // identical on all ranks
//   training::parallelize(*model, mesh.along("tp"),
//                         {{"blocks.*.up", training::ColwiseParallel{}},
//                          {"blocks.*.down", training::RowwiseParallel{}}});
//   training::fully_shard(*model, mesh.along("dp"));           // optional: shards over "dp" too
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);  // after both
//
// Layers remain the same objects and may be called in any way. An operation that reads a cut
// parameter computes with this rank's part and sends what the other ranks need, in forward and
// backward. A column-wise layer returns this rank's part of the last dimension. The layers after it
// work on that part (a ReLU, or a dropout with the same random state on all ranks) until a row-wise
// layer takes the parts and sums its results over the ranks. Nothing is sent between these two
// layers; the pair needs one all-reduce in forward and one in backward.
//
// As with fully_shard, a layer's own member (`weight`) keeps its size but has no memory. The module
// registers a leaf tensor with this rank's part under the same name. Optimizers train this part,
// and state dicts hold it as a sharded tensor under the plain model's name. Parameters that are not
// cut are plain tensors; they stay identical on all ranks, since all ranks compute the same
// gradients for them.
//
// These mistakes throw an Error:
// - using a cut parameter in an operation other than that of its layer, or changing it
//   (kUnsupported, immediately);
// - training with an optimizer that was made before `parallelize`;
// - calling fully_shard before parallelize.
//
// Cloning a cut module with clone() is also a mistake, but is not detected.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>

#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

// torch::nn::Linear: each rank computes some output features from the whole input.
// torch::nn::Embedding: each rank holds some columns of every row.
struct ColwiseParallel {
  bool gather_output = false;  // return the whole output on every rank
};
// torch::nn::Linear: each rank computes with some input features, and the results are summed over
// the ranks. torch::nn::Embedding: each rank holds some rows, and the requested rows are collected
// from the ranks. The output is whole.
struct RowwiseParallel {
  // True: the input is this rank's part, as a column-wise layer returns it. False: the input is
  // whole. Embeddings take whole indices.
  bool input_is_parallel = true;
};
using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel>;
// Names submodules relative to the parallelized module. Each part of a name is a file name pattern:
// "blocks.*.up". "" names the module itself.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

// Cuts the layers named in the plan over `mesh`, which has one axis. Parts are the chunks of
// torch.chunk, and may be uneven or empty. If values of parameters differ between ranks, all ranks
// get those of the mesh's first rank, even for parameters that stay whole. Tied parameters are cut
// once; the plan must then name all their layers.
//
// A collective. Throws kInvalidArgument, listing everything in the plan that does not fit, and
// kMismatch if the plans, or the names, types or sizes of parameters, differ between ranks. After
// either error, nothing has changed.
void parallelize(torch::nn::Module& module, const ProcessMesh& mesh, const ParallelPlan& plan);

}  // namespace cairn::training
