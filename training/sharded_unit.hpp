// The units of a model. A unit has the parameters of one module that are gathered, used and reduced
// together. The group of a model's units decides when each of them is freed and reduced.
//
// Gathered parameters stay gathered within a *scope*: the forward call of a model (ForwardScope), a
// backward pass, or, outside both, a single operation. Within a scope, gathering a unit frees all
// units except itself and those that enclose it. So the gathered units are, at any time, at most
// the unit in use, the units that enclose it, and one prefetched unit. The end of the scope frees
// all units, except those that keep their parameters for backward: these are freed in the backward
// pass, or when the next forward call begins. A gathered copy is therefore never older than the
// last values that an optimizer or a load wrote to the shards.
//
// All ranks send the same messages in the same order, whichever gradients each rank has and
// whenever they arrive. A unit's *turn* in a backward pass ends when the pass reaches a unit that
// this unit does not enclose, or when the pass ends. The unit's gradients are then reduced. If more
// gradients arrive later on any rank, all ranks send them in an extra round at the end of the pass.
// In later passes, that unit's gradients are reduced only at the end of the pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <cairn/training/process_group.hpp>
#include <cairn/training/process_mesh.hpp>
#include <cairn/training/sharding_options.hpp>

namespace cairn::training {

class ShardedUnit;

// The state that the units of one model share: unit_group.cpp.
class UnitGroup : public std::enable_shared_from_this<UnitGroup> {
 public:
  // Returns the group that this one was merged into, or this one.
  std::shared_ptr<UnitGroup> current();
  void merge_into(const std::shared_ptr<UnitGroup>& other);
  void add(ShardedUnit& unit) { units_.push_back(&unit); }
  void remove(ShardedUnit& unit);  // called by the unit's destructor
  // Returns the units in the order in which they were wrapped. O(units): call it once per pass,
  // never per operation.
  std::vector<std::shared_ptr<ShardedUnit>> units() const;
  void note_wrapped(const torch::nn::Module& module) { wrapped_.push_back(&module); }
  bool has_wrapped(const torch::nn::Module& module) const;

  void enter_forward();
  void leave_forward();
  // Notes that a backward pass is running. Call it whenever something happens within the pass.
  void note_backward();
  // Notes that the backward pass has reached `unit`: ends the turns of all other units that do not
  // enclose it. Call it before an operation of a backward pass uses `unit`.
  void note_turn(const ShardedUnit& unit);
  bool in_scope() const { return forward_depth_ > 0 || in_backward_; }
  // Frees all units except `unit` and those that enclose it.
  void free_others(const ShardedUnit& unit);
  bool is_alone(const ShardedUnit& unit) const { return units_.size() == 1 && units_.front() == &unit; }

  // Starts to gather the unit that is likely to follow `unit`. Call it when `unit` is gathered.
  void note_gathered(ShardedUnit& unit);
  void note_freed(ShardedUnit& unit) { take_off(gathered_, unit); }
  // Call `note_used` at the first use of a unit in a backward pass if its gradients are to be
  // reduced when its turn ends. Call `note_finished` when that reduction has started.
  void note_used(ShardedUnit& unit) { used_.push_back(&unit); }
  void note_finished(ShardedUnit& unit) { take_off(used_, unit); }
  void note_reducing(ShardedUnit& unit) { reducing_.push_back(&unit); }  // the next `note_turn` advances its reductions
  void count_gathered(std::int64_t bytes) { gathered_bytes_ += bytes; }  // may be negative
  std::int64_t gathered_peak() const { return gathered_peak_; }
  void reset_peak() { gathered_peak_ = gathered_bytes_; }

 private:
  // The order in which units are gathered in one kind of scope.
  struct Order {
    std::vector<ShardedUnit*> last;  // null: a unit that was destroyed
    std::vector<ShardedUnit*> now;
    bool as_last = true;  // `now` has agreed with `last` so far

    void begin();
    ShardedUnit* next_after(ShardedUnit& unit);  // null: unknown
  };
  static void take_off(std::vector<ShardedUnit*>& list, const ShardedUnit& unit) {
    list.erase(std::remove(list.begin(), list.end(), &unit), list.end());
  }
  void drop_prefetched();
  void end_backward();
  void abandon_backward();  // cleans up after an earlier pass that threw

  std::shared_ptr<UnitGroup> merged_into_;
  // Each unit removes itself from these lists when it is destroyed. Single operations do not read
  // `units_`, which may be long.
  std::vector<ShardedUnit*> units_;
  std::vector<ShardedUnit*> gathered_;  // without units that stay gathered until backward
  std::vector<ShardedUnit*> used_;      // in this backward pass, in order of use, not finished yet
  std::vector<ShardedUnit*> reducing_;  // since `turn_` last changed
  std::vector<const torch::nn::Module*> wrapped_;
  int forward_depth_ = 0;
  bool in_backward_ = false;
  std::uint64_t passes_ = 0;           // backward passes that have begun
  const ShardedUnit* turn_ = nullptr;  // the unit that this backward pass reached last; only compared, never dereferenced
  Order forward_, backward_;
  std::int64_t gathered_bytes_ = 0;  // the total of all units, now
  std::int64_t gathered_peak_ = 0;
};

// A parameter found in the module.
struct FoundParameter {
  torch::Tensor tensor;
  std::string name;  // relative to the wrapped module
};

class ShardedUnit final : public std::enable_shared_from_this<ShardedUnit> {
 public:
  // Shards `found`: its tensors become full-size tensors without memory. Returns the shards, which
  // the module must register in their place. The unit lives as long as any shard.
  static std::vector<torch::Tensor> make(const torch::nn::Module& module, const std::vector<FoundParameter>& found,
                                         const ProcessMesh& mesh, const FullyShardOptions& options,
                                         const std::shared_ptr<UnitGroup>& group);
  ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  // The kernel in gather_on_use.cpp pins all units of an operation, then uses each of them, runs
  // the operation, and unpins them.
  void pin() { ++pins_; }  // from now on, using another unit does not free this one
  void use();              // gathers the parameters
  void unpin();

  void gather();
  // Starts to gather; the next `gather` then only waits. No effect on a gathered unit.
  void prefetch();
  void drop_prefetched();  // frees the memory; the gather itself continues, because all ranks have started it
  // If the module's member was frozen or unfrozen, does the same to the shard, and vice versa.
  void follow_requires_grad();
  void free();  // no-op while pinned
  // Returns whether the ranks must agree on when this unit's gradients are reduced: see UnitGroup.
  bool reduces() const { return gradient_sync_ && averaged() > 1 && gradients_expected() > 0; }
  bool is_at_work() const { return at_work_; }
  bool was_used() const { return used_; }  // by an operation of this backward pass, and not finished since
  void set_late() { late_ = true; }
  const std::optional<ProcessGroup>& replica_group() const { return replica_group_; }
  // Ends this unit's part of a backward pass: starts to reduce the gradients that have arrived.
  void finish_backward();
  // Returns whether there are gradients that no reduction has taken.
  bool has_gradients_left() const;
  void reduce_gradients_left();
  // A reduction has two steps: over the ranks that share the cut, then over the replicas. Starts
  // the second step of reductions in flight, if there are replicas.
  void advance_reductions();
  // Waits for the reductions. Returns, for each parameter in them, how many ranks had a gradient.
  torch::Tensor end_reductions();
  // Stores the reduced gradients that any rank had. `had` points to the numbers that
  // `end_reductions` returned, on the host. Returns the pointer to those of the next unit.
  const float* put_gradients(const float* had);
  void abandon_backward();

  at::Device compute_device() const;
  // Returns the shard of parameter `index`; undefined if it no longer exists.
  torch::Tensor shard(std::size_t index) const;
  // Returns the full tensor that the model computes with.
  const torch::Tensor& full(std::size_t index) const { return parameters_[index].full; }
  // Returns a copy of all rows of a tensor that is cut like parameter `index`. `local` is this
  // rank's part of that tensor. A collective.
  torch::Tensor whole(std::size_t index, const torch::Tensor& local) const;
  bool encloses(const ShardedUnit& other) const;
  void enclose(const std::shared_ptr<ShardedUnit>& inner);  // `inner` has no enclosing unit yet
  std::shared_ptr<UnitGroup> group() const { return group_->current(); }
  const ProcessMesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  // Returns the ranks over which parameters are cut; a group of one for kNoShard.
  const ProcessGroup& shard_group() const { return shard_group_; }
  bool keeps_until_backward() const { return options_.strategy == ShardingStrategy::kShardGradients; }
  bool prefetches() const { return options_.prefetch && shard_group_.size() > 1; }
  void set_gradient_sync(bool on) { gradient_sync_ = on; }
  bool gradient_sync() const { return gradient_sync_; }
  void set_state_dict_type(StateDictType type) { state_dict_type_ = type; }
  StateDictType state_dict_type() const { return state_dict_type_; }
  std::int64_t shard_bytes() const { return shard_bytes_; }        // the total of all shards
  std::int64_t gathered_bytes() const { return gathered_bytes_; }  // now
  std::int64_t gathers() const { return gathers_; }                // how many times it was gathered

 private:
  struct Parameter {
    std::string name;
    torch::Tensor full;  // the tensor that the model computes with
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> shard{
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    at::ScalarType type;          // the shard's type
    at::Device place = at::kCPU;  // the shard's device
    std::int64_t chunk_elements = 0;  // elements per rank in messages: as many as rank 0 has, the largest part
    std::int64_t shard_elements = 0;  // this rank's number of elements
    bool requires_grad = false;       // as last seen on both tensors
    bool is_cut = false;              // cut over several ranks: the shard and its gradient carry kShardedKey
    bool gradient_came = false;       // in this backward pass
    torch::Tensor no_gradient;        // placeholder for the gradient of `full`
    // Keeps the accumulator alive, and with it the accumulator's hooks.
    decltype(torch::autograd::Edge::function) accumulator;
  };
  // Parameters in flight: the concatenated parts of all ranks.
  struct Gathering {
    torch::Tensor parts;
    Pending pending;
  };
  // Gradients in flight.
  struct Reduction {
    std::vector<std::size_t> members;
    // The number of elements of all gradients, each padded to an aligned size. In `sums`, these
    // elements come first, then one flag per member.
    std::int64_t elements = 0;
    torch::Tensor sums;
    std::vector<torch::Tensor> gradients;  // the gradients of the members' shards, once available
    bool scattered = false;                // the reduction over the ranks that share the cut is done
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
  void watch_gradient(std::size_t index);
  void gradient_came(std::size_t index);
  int averaged() const;  // the number of ranks to average over
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
  bool at_work_ = false;  // used, or got a gradient, in this backward pass, and not finished since
  bool used_ = false;     // used in this backward pass, and not finished since
  bool late_ = false;     // its gradients are reduced only at the end of each pass
  std::size_t gradients_come_ = 0;
  int pins_ = 0;
  // Each bucket lists the parameters whose gradients go in one message. The buckets are in the
  // order of sending, which is the same on all ranks.
  std::vector<std::vector<std::size_t>> buckets_;
  std::size_t buckets_begun_ = 0;
  std::vector<Reduction> reductions_;  // in flight
  std::optional<Gathering> gathering_;
  std::int64_t shard_bytes_ = 0;
  std::int64_t gathered_bytes_ = 0;
  std::int64_t gathers_ = 0;
};

// Returns the unit that a shard or a full parameter belongs to; null for other tensors.
std::shared_ptr<ShardedUnit> unit_behind(const torch::Tensor& tensor);
// Returns the units of a module's registered parameters, each once.
std::vector<std::shared_ptr<ShardedUnit>> units_in(const torch::nn::Module& module);

// --- the memory of sharded parameters: gather_on_use.cpp -----------------------------------------

// Identifies the unit and parameter that own a storage's memory.
struct MemoryOwner {
  enum class Role {
    kParameter,  // the full tensor that the model computes with; has memory only while gathered
    kGradient,   // a placeholder for the gradient of such a tensor; the shard has the real gradient
    kShard       // the tensor that the optimizer trains
  };
  Role role;
  std::weak_ptr<ShardedUnit> unit;
  std::size_t index;  // the parameter's index in its unit
  std::string name;   // the parameter's name
};

// Returns a strided tensor of this size without memory. Its storage has size `storage_bytes`, which
// must be at least the size of the tensor.
torch::Tensor tensor_without_memory(at::IntArrayRef sizes, const torch::TensorOptions& options, std::size_t storage_bytes,
                                    MemoryOwner owner);
// Replaces the memory behind the storage of `tensor` with that of `memory`, and keeps `memory`
// alive while it is in use. An undefined `memory` leaves the storage without memory.
void set_memory(const torch::Tensor& tensor, const torch::Tensor& memory);
// Sets the owner of `shard`'s memory, which stays in place. `unit` lives as long as this memory.
void own_shard(const torch::Tensor& shard, MemoryOwner owner, std::shared_ptr<ShardedUnit> unit);
// Returns the owner of the tensor's memory; null if Cairn did not set one. The pointer is valid
// until the tensor's memory is replaced.
const MemoryOwner* memory_owner(const torch::Tensor& tensor);
// Installs the kernel that gathers. Later calls in the process have no effect.
void install_gather_on_use();

}  // namespace cairn::training
