// Options of fully sharded training: see fully_shard.hpp and, for state dicts, state_dicts.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace cairn::training {

enum class ShardingStrategy {
  kFull,            // frees parameters after forward and gathers them again for backward
  kShardGradients,  // leaves parameters gathered after forward until backward has used them: sends less, uses more memory
  kNoShard          // every rank keeps whole parameters; gradients are averaged. State dicts hold plain tensors
};

struct MixedPrecision {
  std::optional<at::ScalarType> parameters;  // the type that the model computes with; the shards keep their own type
  std::optional<at::ScalarType> reduction;   // the type in which gradients are averaged; default: the type of the shards
  // Floating-point buffers of the wrapped module, but not of inner wrapped modules, are converted
  // to this type and saved in it.
  std::optional<at::ScalarType> buffers;
  // Casts the module's floating-point inputs to `parameters`. Has an effect only on calls through
  // Hooked.
  bool cast_forward_inputs = true;
};

// Decides which submodules become units of their own. `unwrapped` is the number of elements in
// those parameters of the module that no inner unit has taken.
using WrapPolicy = std::function<bool(const torch::nn::Module& module, std::int64_t unwrapped)>;
// Wraps modules of these classes: `wrap_classes<torch::nn::LinearImpl>()`.
template <class... Modules>
WrapPolicy wrap_classes() {
  return [](const torch::nn::Module& module, std::int64_t) { return (... || (dynamic_cast<const Modules*>(&module) != nullptr)); };
}
// Wraps modules with at least `elements` elements that no inner unit has taken.
inline WrapPolicy wrap_from_size(std::int64_t elements) {
  return [elements](const torch::nn::Module&, std::int64_t unwrapped) { return unwrapped >= elements; };
}

struct FullyShardOptions {
  ShardingStrategy strategy = ShardingStrategy::kFull;
  MixedPrecision mixed_precision;
  WrapPolicy wrap_policy;  // empty: wraps no submodules
  // While a unit computes, gathers the unit that came next in the previous pass, in forward and in
  // backward. Needs memory for one more unit.
  bool prefetch = true;
  // kNoShard only: approximate size in bytes of a gradient message. Messages are sent while
  // backward still runs. Default: 25 MiB.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  // Keeps shards, their gradients and their optimizer state in host memory. With a CUDA device,
  // shards and gradients are page-locked. Each gather transfers parameters to the module's device,
  // and each reduction transfers gradients back. The host waits for both. Optimizers step on the
  // CPU.
  bool offload_to_host = false;
  // Modules to leave alone, with everything inside them: their parameters stay whole, and their
  // gradients are not averaged.
  std::vector<const torch::nn::Module*> ignored_modules;
};

// The form in which state dicts hold sharded parameters and their optimizer state. See
// state_dicts.hpp.
enum class StateDictType : std::uint8_t {
  kSharded,  // sharded tensors that share memory with model and optimizer
  kFull,     // whole tensors, copied
  kLocal     // this rank's part as a plain tensor that shares memory with model or optimizer
};

}  // namespace cairn::training
