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
  ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  // Called around each operation that reads a parameter.
  void pin() { ++pins_; }
  void use();
  void unpin();

  void gather();
  // Begins what the next `gather` then only has to wait for; no-op for a unit that is gathered.
  void prefetch();
  void drop_prefetched();  // its memory; the ranks have all begun it, and it goes on
  // Freezing and thawing, on the member or on the shard, holds for both.
  void follow_requires_grad();
  void free();  // no-op while pinned
  // Whether ranks have to agree on when gradients are reduced, and when this unit's are: see UnitGroup.
  bool reduces() const { return gradient_sync_ && averaged() > 1 && gradients_expected() > 0; }
  bool is_at_work() const { return at_work_; }
  bool was_used() const { return used_; }  // by an operation of this backward pass, and not finished since
  bool is_late() const { return late_; }   // gradients came after its part of a pass had been finished once, on some rank
  void set_late() { late_ = true; }
  const std::optional<ProcessGroup>& replica_group() const { return replica_group_; }
  // The end of its part of a backward pass: begins to reduce the gradients that have come.
  void finish_backward();
  // Gradients that are on none of their ways.
  bool has_gradients_left() const;
  void reduce_gradients_left();
  // Begins the second half of reductions under way, where there is one: first over the ranks that share the cut, then over replicas.
  void advance_reductions();
  // Waits for reductions. Returns for each parameter in them how many ranks had a gradient, in the order that `put_gradients` takes.
  torch::Tensor end_reductions();
  // `had`: a number for each parameter in the reductions that have ended. Returns where the next unit's begin.
  const float* put_gradients(const float* had);
  void abandon_backward();

  at::Device device() const;  // that the model computes on
  // The shard of parameter `index`; undefined if nobody holds it any more.
  torch::Tensor shard(std::size_t index) const;
  // What the model computes with.
  const torch::Tensor& full(std::size_t index) const { return parameters_[index].full; }
  // A copy of all rows of what is cut like parameter `index`, of which this rank has `local`. A collective.
  torch::Tensor whole(std::size_t index, const torch::Tensor& local) const;
  bool encloses(const ShardedUnit& other) const;
  void enclose(const std::shared_ptr<ShardedUnit>& inner);  // `inner` has no enclosing unit yet
  bool is_of(const torch::nn::Module& module) const { return module_ == &module; }
  std::shared_ptr<UnitGroup> group() const { return group_->current(); }
  const ProcessMesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  // The ranks over which parameters are cut; a group of one for `no_shard`.
  const ProcessGroup& shard_group() const { return shard_group_; }
  bool keeps_until_backward() const { return options_.strategy == ShardingStrategy::kShardGradients; }
  bool is_gathered() const { return gathered_; }
  bool prefetches() const { return options_.prefetch && shard_group_.size() > 1; }
  void set_gradient_sync(bool on) { gradient_sync_ = on; }
  bool gradient_sync() const { return gradient_sync_; }
  void set_state_dict_type(StateDictType type) { state_dict_type_ = type; }
  StateDictType state_dict_type() const { return state_dict_type_; }
  const MemoryUse& memory() const { return memory_; }  // without the peak, which is the group's

 private:
  struct Parameter {
    std::string name;
    torch::Tensor full;  // what the model computes with
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> shard{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    at::ScalarType type;          // of the shard
    at::Device place = at::kCPU;  // the same
    std::int64_t rows = 0;        // of the full tensor
    std::int64_t row_elements = 0;
    std::int64_t chunk_elements = 0;  // of a rank's part in the messages: that of rank 0, the largest
    std::int64_t shard_elements = 0;  // of this rank
    bool requires_grad = false;       // as last seen on both tensors
    bool is_cut = false;              // over ranks: its shard and its gradient are marked as sharded
    bool gradient_came = false;       // in this backward pass
    torch::Tensor no_gradient;        // stands in for the gradient of `full`
    // Held, or its hooks would go.
    decltype(torch::autograd::Edge::function) accumulator;
  };
  // Parameters on their way: the parts of all ranks, one after the other.
  struct Gathering {
    torch::Tensor parts;
    Pending pending;
  };
  // Gradients on their way.
  struct Reduction {
    std::vector<std::size_t> members;
    std::int64_t elements = 0;  // of the gradients, each filled up to where memory is aligned; after them one flag for each member
    torch::Tensor sums;
    std::vector<torch::Tensor> gradients;  // of the members' shards, once they are there
    bool scattered = false;                // over the ranks that share the cut
    Pending pending;
  };

  ShardedUnit(const torch::nn::Module& module, const ProcessMesh& mesh, const FullyShardOptions& options,
              std::shared_ptr<UnitGroup> group);
  torch::Tensor add(const FoundParameter& found);
  void check_untouched() const;
  std::int64_t bytes_per_rank(const Parameter& parameter) const;  // in messages
  void begin_gathering();
  std::vector<torch::Tensor> end_gathering();
  void set_gathered_bytes(std::int64_t bytes);
  void follow_requires_grad(Parameter& parameter);
  void watch_gradient(std::size_t index);
  void gradient_came(std::size_t index);
  int averaged() const;  // over how many ranks
  void begin_complete_buckets();
  void take_gradients_alone();
  void make_buckets();
  bool is_complete(const std::vector<std::size_t>& bucket) const;
  Reduction begin_reduction(const std::vector<std::size_t>& members);
  void advance(Reduction& reduction);
  static bool has_gradient_left(const Parameter& parameter);
  void put_gradient(std::size_t index, const torch::Tensor& gradient);
  void stand_in_for_gradients();
  std::size_t gradients_expected() const;

  const torch::nn::Module* module_;  // to compare with, never to follow
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
  StateDictType state_dict_type_ = StateDictType::kSharded;
  bool at_work_ = false;  // in this backward pass, and not finished since
  bool used_ = false;     // the same
  bool late_ = false;
  std::size_t gradients_come_ = 0;
  int pins_ = 0;
  // Parameters whose gradients go in one message, in the order in which messages are sent, which is the same on all ranks.
  std::vector<std::vector<std::size_t>> buckets_;
  std::size_t buckets_begun_ = 0;
  std::vector<Reduction> reductions_;  // under way
  std::optional<Gathering> gathering_;
  MemoryUse memory_;
};

}  // namespace cairn::training
