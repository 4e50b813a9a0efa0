// Planners bind tensors to plans. After DCP's SavePlanner and LoadPlanner: every hook, in DCP's order; all may be replaced.
//
// One planner object serves one save or load at a time and may be used again. Hooks run on the thread that called `save` or `load`
// (for an asynchronous save: on a thread of its own), one after the other; `resolve_data`, `load_bytes`, `resolve_tensor`
// and `commit_tensor` may be called from several of the writer's or reader's threads at once, unless it says otherwise. A hook that
// throws fails the attempt on all ranks, with this rank and the exception's type and text in the failure map.
#pragma once

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

// What `resolve_data` gives the writer: a tensor with exactly the item's chunk sizes (any strides, any device), or bytes.
using ResolvedData = std::variant<torch::Tensor, Bytes>;

class SavePlanner {
 public:
  virtual ~SavePlanner() = default;

  // On every rank, first. `state_dict` stays alive and unchanged until the attempt ends; Stateful objects in it are replaced by
  // what they returned.
  virtual void set_up_planner(const StateDict& state_dict, int rank, bool is_coordinator) = 0;
  // On every rank: what this rank could write.
  virtual SavePlan create_local_plan() = 0;
  // On the coordinator: `all_plans[r]` is rank r's. Returns what each rank is to write, by rank, and the metadata.
  virtual GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) = 0;
  // On every rank: a last look at what this rank is to write.
  virtual SavePlan finish_plan(SavePlan new_plan) = 0;
  // On every rank, from the writer: the data of one item of the finished plan.
  virtual ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) = 0;
};

class LoadPlanner {
 public:
  virtual ~LoadPlanner() = default;

  // On every rank, after `read_metadata`. The planner fills `state_dict`: tensors in place, other leaves by replacement. Both
  // arguments stay alive until the attempt ends.
  virtual void set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool is_coordinator) = 0;
  // On every rank: what this rank needs. Reports everything that is missing or does not fit in one error, before a byte is changed.
  virtual LoadPlan create_local_plan() = 0;
  // On the coordinator.
  virtual std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) = 0;
  // On every rank.
  virtual LoadPlan finish_plan(LoadPlan central_plan) = 0;
  // From the reader: the bytes object of one item.
  virtual void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) = 0;
  // From the reader: the tensor of `item.lengths` to fill (any strides, any device), a view of the destination where possible; never
  // undefined.
  virtual torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) = 0;
  // From the reader: that tensor is filled.
  virtual void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) = 0;
};

struct SavePlannerOptions {
  bool flatten_state_dict = true;  // off: nested dicts and lists are an error
  GlobalPlanOptions global;
};

struct LoadPlannerOptions {
  bool flatten_state_dict = true;
  bool allow_partial_load = false;  // keys that the checkpoint lacks keep the caller's value
  bool allow_dtype_cast = false;    // a stored dtype may differ from the destination's
};

// Cairn's own; derive from them to change one hook.
//
// Errors of create_local_plan: kAlreadyExists (two paths flatten to one name), kUnsupported (sparse, quantized and other tensors
// that cannot be stored, leaves that cannot be pickled; all of them named). It serialises bytes leaves: they are what they were
// then.
class DefaultSavePlanner : public SavePlanner {
 public:
  explicit DefaultSavePlanner(SavePlannerOptions options = {});
  ~DefaultSavePlanner() override;
  void set_up_planner(const StateDict& state_dict, int rank, bool is_coordinator) override;
  SavePlan create_local_plan() override;
  // Remembers its last result: the same local plans give it again without planning anew.
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override;
  SavePlan finish_plan(SavePlan new_plan) override;
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Errors of create_local_plan: kNotFound where only keys are missing, kUnsupported where only types are, else kMismatch; each lists
// everything at once, and nothing was changed.
//
// Beyond equal types, it accepts: a stored 0-dim tensor for a number (PyTorch keeps an optimizer's `step` so); for an empty dict,
// nothing at all (PyTorch does not store them); in a checkpoint of PyTorch before 2.4, a container that was stored whole.
class DefaultLoadPlanner : public LoadPlanner {
 public:
  explicit DefaultLoadPlanner(LoadPlannerOptions options = {});
  ~DefaultLoadPlanner() override;
  void set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool is_coordinator) override;
  LoadPlan create_local_plan() override;
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override;
  LoadPlan finish_plan(LoadPlan central_plan) override;
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override;
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) override;
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Loads by key prefixes without a template (kNotFound, with the closest keys, for a prefix that nothing has; kInvalidArgument for a
// state dict that is not empty): builds whole CPU tensors and values for every stored name that is one of `prefixes` or
// below it ("optimizer.state" has "optimizer.state.…"), nested as saved, into the state dict passed to `load`, which must be empty.
// No prefixes: everything.
std::unique_ptr<LoadPlanner> make_key_load_planner(std::vector<std::string> prefixes);

// The metadata that saving `state_dict` would give, seen from one rank (DCP's create_default_metadata): sharded tensors made from a
// spec or a mesh list the chunks of all ranks; values marked by `per_rank` are listed as rank 0's.
Metadata create_default_metadata(const StateDict& state_dict);

// The Python pickle of a leaf (torch.save's archive), as bytes objects are stored, and back. Defined in state/leaf_bytes.cpp.
Bytes serialize_leaf(const Value& value);
Value deserialize_leaf(ByteSpan bytes);

}  // namespace cairn
