// The parameters of one module that are gathered, computed with, and reduced together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <cairn/training/fully_shard.hpp>
#include <cairn/training/unit_group.hpp>

namespace cairn::training {

// One parameter as it is found in the module.
struct FoundParameter {
  torch::Tensor tensor;
  std::string name;  // from the wrapped module on
};

class ShardedUnit : public std::enable_shared_from_this<ShardedUnit> {
 public:
  // Shards `found`: the tensors become full-size ones without memory. Returns the shards, which the module is to register in their
  // place; the unit lives as long as one of them does.
  static std::vector<torch::Tensor> make(const torch::nn::Module& module, const std::vector<FoundParameter>& found,
                                         const ProcessMesh& mesh, const FullyShardOptions& options,
                                         const std::shared_ptr<UnitGroup>& group);

  // Called around each operation that reads a parameter.
  void pin() { ++pins_; }
  void use();
  void unpin();

  void gather();
  void free();  // no-op while pinned
  // Reduces gradients that have come, if any have, or if the unit was at work in this backward pass.
  void finish_backward();
  void abandon_backward();

  // The shard of parameter `index`; undefined if nobody holds it any more.
  torch::Tensor shard(std::size_t index) const;
  // A copy of all rows of what is cut like parameter `index`, of which this rank has `local`. A collective.
  torch::Tensor whole(std::size_t index, const torch::Tensor& local) const;
  bool encloses(const ShardedUnit& other) const;
  void enclose(const std::shared_ptr<ShardedUnit>& inner);  // `inner` has no enclosing unit yet
  std::shared_ptr<UnitGroup> group() const { return group_->current(); }
  const ProcessMesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  // The ranks over which parameters are cut; a group of one for `no_shard`.
  const ProcessGroup& shard_group() const { return shard_group_; }
  bool keeps_until_backward() const { return options_.strategy == ShardingStrategy::kShardGradients; }
  bool is_gathered() const { return gathered_; }
  void set_gradient_sync(bool on) { gradient_sync_ = on; }
  const MemoryUse& memory() const { return memory_; }  // without the peak, which is the group's

 private:
  struct Parameter;

  ShardedUnit(const torch::nn::Module& module, const ProcessMesh& mesh, const FullyShardOptions& options,
              std::shared_ptr<UnitGroup> group);
  torch::Tensor add(const FoundParameter& found);
  void check_untouched() const;
  void follow_requires_grad(Parameter& parameter);
  void watch_gradient(std::size_t index);
  void gradient_came(std::size_t index);
  void reduce();
  void put_gradient(std::size_t index, const torch::Tensor& gradient);
  void stand_in_for_gradients();
  std::size_t gradients_expected() const;
  at::Device device() const;

  std::string module_name_;
  ProcessMesh mesh_;
  FullyShardOptions options_;
  ProcessGroup shard_group_;
  std::optional<ProcessGroup> replica_group_;  // the ranks that hold the same shards
  std::shared_ptr<UnitGroup> group_;
  std::weak_ptr<ShardedUnit> enclosing_;
  std::vector<Parameter> parameters_;
  bool gathered_ = false;
  bool gradient_sync_ = true;
  bool at_work_ = false;  // in this backward pass, and not reduced since
  std::size_t gradients_come_ = 0;
  int pins_ = 0;
  MemoryUse memory_;
};

}  // namespace cairn::training
