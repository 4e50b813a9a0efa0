// Tensor parallel training: layers are cut over the ranks, which all work on the same input. After PyTorch's parallelize_module.
//
//   training::ProcessMesh mesh(group, {2, 2}, {"dp", "tp"});
//   Net model(…);                                                            // a module as always, the same on all ranks
//   training::parallelize(*model, mesh.along("tp"), {{"blocks.*.up", training::ColwiseParallel{}},
//                                                    {"blocks.*.down", training::RowwiseParallel{}}});
//   training::fully_shard(*model, mesh.along("dp"));                         // if wanted: cuts what is left once more
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);                // after both
//
// Layers stay the objects that they were, and are called in whatever way: operations that read a cut parameter compute with this
// rank's part of it, and exchange what has to be exchanged, forward and backward. A column-wise layer gives this rank's part of the last
// dimension; what follows works on that (a ReLU, a dropout with the ranks' generators alike, …), until a row-wise layer takes the parts and
// adds them up. Between the two nothing is sent; the pair sends one all-reduce forward and one backward.
//
// As with fully_shard, a layer's own member (`weight`) keeps its size but has no memory, while the module registers a leaf tensor with this rank's
// part under the same name: `parameters()` are what optimizers train and state dicts hold, as sharded tensors under the plain model's
// names. Parameters that are not cut are plain tensors; they stay alike on all ranks, as these compute the same gradients for them.
//
// Refused, each with an Error that says so: other operations on a cut parameter than those of its layer (kUnsupported, when it is
// tried), also changing it; an optimizer that was made before; fully_shard before parallelize. What is not found: clone() of a cut module.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>

#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

// torch::nn::Linear: each rank computes some of the output features, from the whole input. torch::nn::Embedding: some of each row.
struct ColwiseParallel {
  bool gather_output = false;  // give the whole output, on every rank
};
// torch::nn::Linear: each rank computes with some of the input features, and the ranks add up. torch::nn::Embedding: each rank has some
// of the rows, and those asked for come together. The output is whole.
struct RowwiseParallel {
  bool input_is_parallel =
      true;  // this rank's part, as a column-wise layer gives it; else the whole. Embeddings take whole indices
};
using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel>;
// Submodules by name, from the parallelized module on, each part of it a pattern as in file names: "blocks.*.up". "": the module itself.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

// Cuts the layers that the plan names over `mesh`, which has one axis; parts are as torch.chunk makes them, also uneven and empty ones.
// Where ranks' parameters differ, the values of the mesh's first rank count, also of those that stay whole. Tied parameters are cut once, if
// the plan names all their layers.
// Collective. Throws kInvalidArgument with everything in the plan that does not fit, kMismatch for ranks that differ in plan or parameters, in
// both cases before anything changes.
void parallelize(torch::nn::Module& module, const ProcessMesh& mesh, const ParallelPlan& plan);

}  // namespace cairn::training
