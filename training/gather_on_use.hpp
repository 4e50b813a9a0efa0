// How a sharded parameter notices that it is used.
//
// LibTorch's modules have no hooks, but every operation on a tensor goes through its dispatcher. The tensor that a model holds as its
// parameter stays the same object for ever, of full size, and carries a dispatch key of its own (kShardedKey); views of it inherit the
// key, also those that autograd keeps for the backward pass. The kernel behind that key comes before all others: it asks the unit that
// owns the memory to gather it, and hands the operation on. Operations that only make views pass: they touch no data.
//
// The shards of parameters that are cut over ranks, their gradients, and the elementwise results of either carry the key as well.
// Other operations on them, such as reductions, would return a different number on each rank: the kernel refuses them.
// `local_tensor` returns a tensor without the key.
//
// Memory is told by its owner: the context of the storage's DataPtr says which parameter of which unit it belongs to. Between uses the
// storage keeps its size but has no memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/function_schema.h>
#include <torch/types.h>

namespace cairn::training {

class ShardedUnit;

// Whose memory a storage holds.
struct MemoryOwner {
  enum class Role {
    kParameter,  // the full tensor that the model computes with; there while gathered
    kGradient,   // stands in for the gradient of such a tensor: the real one is the shard's
    kShard       // what the optimizer trains
  };
  Role role;
  std::weak_ptr<ShardedUnit> unit;
  std::size_t index;  // of the parameter in its unit
  std::string name;   // of the parameter
};

// Installs the kernel, once per process.
void install_gather_on_use();

// Whether an operation returns views of what it is given, and so touches no data.
bool makes_views(const c10::FunctionSchema& schema);
// A strided tensor of this size over memory that another owns, or over none.
torch::Tensor tensor_over(at::DataPtr data, std::size_t storage_bytes, at::IntArrayRef sizes, const torch::TensorOptions& options);

// A strided tensor of this size whose storage has `storage_bytes` (at least those of the tensor) but no memory.
torch::Tensor tensor_without_memory(at::IntArrayRef sizes, const torch::TensorOptions& options, std::size_t storage_bytes,
                                    MemoryOwner owner);
// Exchanges the memory behind the storage of `tensor`. An undefined `memory`: none. Else what it holds, which stays alive for as long.
void set_memory(const torch::Tensor& tensor, const torch::Tensor& memory);
// Names the owner of `shard`'s memory, which stays; `keeps` lives as long as it does.
void own_shard(const torch::Tensor& shard, MemoryOwner owner, std::shared_ptr<ShardedUnit> keeps);
// The owner; nullptr for tensors of others. Valid as long as the tensor's memory is not exchanged.
const MemoryOwner* memory_owner(const torch::Tensor& tensor);

}  // namespace cairn::training
