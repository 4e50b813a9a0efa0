// Gathers a sharded parameter when an operation uses it.
//
// LibTorch's modules have no hooks, but every operation on a tensor goes through its dispatcher.
// The model's parameter remains the same full-size tensor object and carries a dispatch key,
// kShardedKey. Views inherit the key, including those that autograd saves for backward. The kernel
// for that key runs before those of LibTorch: it asks the unit that owns the memory to gather the
// parameter, and then redispatches the operation. The kernel gathers nothing for operations that
// only make views, since they touch no data.
//
// The shards of parameters that are cut over ranks carry the key as well, and so do their gradients
// and the elementwise results of either. Other operations on them, such as reductions, would return
// a different number on each rank, so the kernel refuses them. `local_tensor` returns a tensor
// without the key.
//
// Cairn recognises memory by its owner: the context of the storage's DataPtr names the unit and the
// parameter. Between uses, the storage keeps its size but has no memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/function_schema.h>
#include <torch/types.h>

namespace cairn::training {

// A unit, as the kernel sees it: parameters that are gathered together. The kernel pins all units
// of an operation, then uses each of them, runs the operation, and unpins them.
class GatheredUnit {
 public:
  virtual ~GatheredUnit() = default;
  virtual void pin() = 0;  // from now on, using another unit does not free this one
  virtual void use() = 0;  // gathers the parameters
  virtual void unpin() = 0;
};

// Identifies the unit and parameter that own a storage's memory.
struct MemoryOwner {
  enum class Role {
    kParameter,  // the full tensor that the model computes with; has memory only while gathered
    kGradient,   // a placeholder for the gradient of such a tensor; the shard has the real gradient
    kShard       // the tensor that the optimizer trains
  };
  Role role;
  std::weak_ptr<GatheredUnit> unit;
  std::size_t index;  // the parameter's index in its unit
  std::string name;   // the parameter's name
};

// Installs the kernel. Later calls in the process have no effect.
void install_gather_on_use();

// Returns whether an operation returns views of its arguments, and so touches no data.
bool makes_views(const c10::FunctionSchema& schema);
// Returns a strided tensor of this size over `data`, which may belong to another owner or be null.
torch::Tensor tensor_over(at::DataPtr data, std::size_t storage_bytes, at::IntArrayRef sizes, const torch::TensorOptions& options);

// Returns a strided tensor of this size without memory. Its storage has size `storage_bytes`, which
// must be at least the size of the tensor.
torch::Tensor tensor_without_memory(at::IntArrayRef sizes, const torch::TensorOptions& options, std::size_t storage_bytes,
                                    MemoryOwner owner);
// Replaces the memory behind the storage of `tensor` with that of `memory`, and keeps `memory`
// alive while it is in use. An undefined `memory` leaves the storage without memory.
void set_memory(const torch::Tensor& tensor, const torch::Tensor& memory);
// Sets the owner of `shard`'s memory, which stays in place. `keeps` lives as long as this memory.
void own_shard(const torch::Tensor& shard, MemoryOwner owner, std::shared_ptr<GatheredUnit> keeps);
// Returns the owner of the tensor's memory; null if Cairn did not set one. The pointer is valid
// until the tensor's memory is replaced.
const MemoryOwner* memory_owner(const torch::Tensor& tensor);

}  // namespace cairn::training
