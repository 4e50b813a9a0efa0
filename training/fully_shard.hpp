// Fully sharded training: every rank keeps its rows of each parameter, of its gradient and of what the optimizer keeps for it. Parameters
// are gathered when they are used, and freed again. After PyTorch's fully_shard (FSDP2). docs/training.md explains it with a picture.
//
//   training::Hooked<Net> model(…);                             // a module as always
//   for (auto& layer : *model->layers) training::fully_shard(*layer, mesh);
//   training::fully_shard(model, mesh);                         // the rest: one line a module, from the inside out
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);   // after wrapping: these are the shards
//   model(input).sum().backward();                              // as always
//   training::clip_grad_norm(*model, 1.0);
//   optimizer.step();
//
// A module's own members (`weight`) stay the tensors that they were: the model computes with them, and they are gathered whenever an
// operation reads them, in whatever way the module is called. What the module *registers* (`parameters()`, `named_parameters()`) are
// from then on the shards: leaf tensors of this rank's rows, under the same names, with the gradients. State dicts
// (`cairn::stateful(model)`, `module_state_dict`) hold them as sharded tensors under the names of the plain model.
//
// LibTorch's elementwise operations, such as those of optimizers, work on shards, on their gradients and on what is computed from
// them. Operations that combine elements, such as norms and sums, would return a different number on each rank: they throw
// kUnsupported, and the error names the function to use.
//
// All ranks of the mesh wrap the same modules, in the same order, and use the same units in the same order. All of it runs on one
// thread at a time. What is refused, each with an Error that says so: changing a parameter's gathered copy (kPrecondition, when it is
// tried); moving, casting or re-registering parameters after wrapping; an optimizer that was made before; wrapping twice. A module
// must not read its parameters by way of `parameters()`, nor by raw pointer, in its forward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cairn/training/hooked.hpp>
#include <cairn/training/process_mesh.hpp>

namespace cairn::training {

enum class ShardingStrategy {
  kFull,            // parameters are freed after forward, and gathered again for backward
  kShardGradients,  // parameters stay gathered from forward to backward: less to send, more memory
  kNoShard          // every rank keeps whole parameters; gradients are averaged. State dicts hold plain tensors
};

struct MixedPrecision {
  std::optional<at::ScalarType> parameters;  // what the model computes with; the shards keep their own type
  std::optional<at::ScalarType> reduction;   // in which gradients are averaged; default: the type of the shards
  std::optional<at::ScalarType>
      buffers;  // what floating buffers become, and are saved as: those of the wrapped module but not of inner ones
  // Floating inputs of the module become `parameters`. Works for modules that are called through Hooked.
  bool cast_forward_inputs = true;
};

// Which submodules become units of their own. `unwrapped` is the number of elements that no inner unit has taken yet.
using WrapPolicy = std::function<bool(const torch::nn::Module& module, std::int64_t unwrapped)>;
// Modules of these classes: `wrap_classes<torch::nn::LinearImpl>()`.
template <class... Modules>
WrapPolicy wrap_classes() {
  return [](const torch::nn::Module& module, std::int64_t) { return (... || (dynamic_cast<const Modules*>(&module) != nullptr)); };
}
// Modules with at least so many elements that no inner unit has taken.
inline WrapPolicy wrap_from_size(std::int64_t elements) {
  return [elements](const torch::nn::Module&, std::int64_t unwrapped) { return unwrapped >= elements; };
}

struct FullyShardOptions {
  ShardingStrategy strategy = ShardingStrategy::kFull;
  MixedPrecision mixed_precision;
  WrapPolicy wrap_policy;  // empty: no submodules
  // Gather the unit that came next the last time while this one computes, forward and backward: one more unit's memory.
  bool prefetch = true;
  // kNoShard: gradients go in messages of about this size, which are sent while backward goes on. 25 MiB.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  // Shards, their gradients, and what an optimizer keeps for them, are in host memory, the first two page-locked beside a CUDA device:
  // parameters come to the module's device when they are gathered, and gradients go back when they are reduced; both copies are waited for.
  // Optimizers step on the CPU.
  bool offload_to_host = false;
  // Left alone with all that is in them: their parameters stay whole, and nobody averages their gradients.
  std::vector<const torch::nn::Module*> ignored_modules;
};

// Makes the parameters of `module` that no inner unit has yet into one unit. A mesh with one axis shards over it; one with two shards
// over the second and replicates over the first (hybrid sharding); replicas begin with the values of the first one. Ranks compare what they wrap: kMismatch, naming those that
// differ from rank 0. Throws kPrecondition for a module that is wrapped already, kUnsupported for parameters without dimensions (give
// them one) or that are not strided, kInvalidArgument for a mesh with more axes.
void fully_shard(torch::nn::Module& module, const ProcessMesh& mesh, const FullyShardOptions& options = {});
// The same, and the calls of `module` are a scope: what was gathered in one is freed at its end.
template <class Contained>
void fully_shard(Hooked<Contained>& module, const ProcessMesh& mesh, const FullyShardOptions& options = {});

// --- training ---------------------------------------------------------------------------------------------------------------

// Within such an object's life the parameters of the model that were gathered may stay so; at its end they are freed. For calls that do
// not go through a Hooked; without either every operation gathers for itself, which is right, but slow. What an optimizer or a load writes to
// shards within it is seen after the next backward pass, or its end. Nests.
class ForwardScope {
 public:
  explicit ForwardScope(const torch::nn::Module& model);
  explicit ForwardScope(std::shared_ptr<UnitGroup> group);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  std::shared_ptr<UnitGroup> group_;
};

// Whether backward passes average gradients over the ranks (they do). Off: gradients stay on this rank, whole, and add up until a
// backward pass with synchronisation takes them along: in the type that the model computes in, and for as long as no pass throws, which
// takes them along too. For all units in `module`; the same on all ranks.
void set_gradient_sync(torch::nn::Module& module, bool on);

// Scales all gradients of `module` so that their norm over all ranks, of all parameters together, is at most `max_norm`. Returns the norm
// before that. `norm_type` is above 0; infinity is the largest element. Parameters of no unit count as they are on this rank. A collective.
double clip_grad_norm(torch::nn::Module& module, double max_norm, double norm_type = 2.0);

// A copy of the whole parameter behind `shard`, one of the module's parameters(), on every rank; of a plain tensor, a copy of that. A
// collective.
torch::Tensor full_tensor(const torch::Tensor& shard);

// The same of its gradient; undefined where it has none, which backward passes with synchronisation make alike on all ranks.
torch::Tensor full_grad(const torch::Tensor& shard);

// Returns `shard`, which may also be a shard's gradient, as a plain tensor over the same memory. LibTorch's functions see this
// rank's part alone.
torch::Tensor local_tensor(const torch::Tensor& shard);

// In which form state dicts hold sharded parameters, and what optimizers keep for them: see state_dicts.hpp.
enum class StateDictType : std::uint8_t {
  kSharded,  // sharded tensors, the live ones
  kFull,     // whole tensors, copies
  kLocal     // this rank's part as a plain tensor, the live one
};

struct MemoryUse {  // bytes on this rank
  std::int64_t shards = 0;
  std::int64_t gathered = 0;       // just now
  std::int64_t gathered_peak = 0;  // since the last reset
  std::int64_t gathers = 0;        // how often
};
// Of all units in `module`; the peak is that of the sum.
MemoryUse memory_use(const torch::nn::Module& module);
void reset_memory_peak(const torch::nn::Module& module);

// --------------------------------------------------------------------------------------------------------------------------

namespace detail {
void enter_boundary(torch::nn::Module& module, Boundary& boundary, const FullyShardOptions& options);
}

template <class Contained>
void fully_shard(Hooked<Contained>& module, const ProcessMesh& mesh, const FullyShardOptions& options) {
  fully_shard(*module, mesh, options);
  detail::enter_boundary(*module, *module.boundary(), options);
}

}  // namespace cairn::training
