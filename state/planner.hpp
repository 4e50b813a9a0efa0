// Planners connect the tensors of a state dict with plans. They have all hooks of the SavePlanner
// and LoadPlanner of PyTorch's DCP, in DCP's order. Users may supply planners of their own.
//
// A planner object serves one save or load at a time and may be reused. Hooks run one after the
// other, on the thread that called `save` or `load` or on the thread of an asynchronous save. Only
// `resolve_data`, `load_bytes`, `resolve_tensor` and `commit_tensor` differ: by default, several
// threads of the writer or reader call them at once. If a hook throws, the attempt fails on all
// ranks; the failure map holds this rank and the exception's type and text.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

// The data that `resolve_data` gives the writer: bytes, or a tensor with exactly the sizes of the
// item's chunk (any strides, any device).
using ResolvedData = std::variant<torch::Tensor, Bytes>;

class SavePlanner {
 public:
  virtual ~SavePlanner() = default;

  // Begins a save. Called first, on every rank. `state_dict` stays alive and unchanged until the
  // attempt ends. It holds the dicts of Stateful objects in place of the objects.
  virtual void set_up_planner(const StateDict& state_dict, int rank, bool is_coordinator) = 0;
  // Returns the items that this rank could write; the global plan selects from them. Called on
  // every rank.
  virtual SavePlan create_local_plan() = 0;
  // Returns the metadata, and the items that each rank must write, by rank. Called on the
  // coordinator. `all_plans[r]` is the plan of rank r.
  virtual GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) = 0;
  // Makes final changes to this rank's plan. Called on every rank. Only planner_data may
  // change: the other ranks have planned with the rest.
  virtual SavePlan finish_plan(SavePlan new_plan) = 0;
  // Returns the data of one item of the finished plan. The writer calls this on every rank.
  virtual ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) = 0;
};

// The names that a load skipped on this rank. All names are flattened.
struct LoadReport {
  // In the state dict, but not in the checkpoint: `allow_partial_load` kept the caller's values.
  // Does not list values marked by `per_rank` or `if_stored`, nor empty dicts.
  std::vector<std::string> missing;
  // In the checkpoint, but not in this rank's state dict. If this rank has a value marked by
  // `per_rank`, other ranks' values of that name are listed only if this world does not have the
  // rank: "loader.rank_3" in a world of 2 ranks.
  NameList unexpected;
  // Opaque values that were left out, each with the name of its class: "config:
  // argparse.Namespace". Only the planner of `make_key_load_planner` leaves values out.
  std::vector<std::string> opaque;
  // Marked by `per_rank` or `if_stored`, but without a value for this rank in the checkpoint: the
  // caller's values were kept. With `per_rank`, this happens if more ranks load than saved.
  std::vector<std::string> kept;
};

class LoadPlanner {
 public:
  virtual ~LoadPlanner() = default;

  // Begins a load into `state_dict`: tensors are filled in place, other leaves are replaced. Called
  // on every rank, after `read_metadata`. Both arguments stay alive until the attempt ends.
  virtual void set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool is_coordinator) = 0;
  // Returns the items that this rank needs. Called on every rank, before any data changes. Throws
  // one error for everything that is missing or does not fit.
  virtual LoadPlan create_local_plan() = 0;
  // Compares the stored values of destinations that use the same memory. Called on every rank after
  // `create_local_plan`, before any data changes. `read(plan)` reads the items of `plan` into the
  // tensors that this planner resolves, with the reader of the load. DCP has no such hook. A
  // planner that forwards all hooks to another must forward this one as well.
  using ReadNow = std::function<void(const LoadPlan& plan)>;
  virtual void compare_shared(const ReadNow& /*read*/) {}
  // Returns the items that each rank must read, by rank. Called on the coordinator.
  virtual std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) = 0;
  // Makes final changes to this rank's plan. Called on every rank.
  virtual LoadPlan finish_plan(LoadPlan central_plan) = 0;
  // Takes the bytes object of an item. The reader calls this.
  virtual void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) = 0;
  // Returns the tensor that the reader fills. It has the size `item.lengths` and is never
  // undefined; it may have any strides and be on any device. If possible, it is a view of the
  // destination. The reader calls this.
  virtual torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) = 0;
  // Takes back the tensor of `resolve_tensor`, which the reader has filled. The reader calls this.
  virtual void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) = 0;
  // Returns the report that `load` returns. Called after all other hooks, on every rank that has
  // loaded. DCP has no such hook.
  virtual LoadReport report() const { return {}; }
};

struct SavePlannerOptions {
  bool flatten_state_dict = true;  // false: values that `flatten` would split are an error
  GlobalPlanOptions global;
  // Fills in WriteItem::content_hash of tensors that other ranks may hold and that are not marked
  // by `per_rank`: a hash of the elements in the state dict, in row-major order, whatever device
  // and strides they have. Bits are compared: equal NaNs are equal, and 0 and -0 differ. Set by
  // Checkpointer as SaveOptions::check_replicas says, except in a planner of the user's.
  bool hash_tensors = false;
  int world_size = 0;  // of the save, to tell which parts other ranks may hold; 0: any part. Set by Checkpointer as well
};

struct LoadPlannerOptions {
  bool flatten_state_dict = true;
  bool allow_partial_load = false;  // keys that the checkpoint lacks keep the caller's value
  bool allow_dtype_cast = false;    // a stored dtype may differ from the destination's
  // If the checkpoint has values marked by `per_rank` of ranks that this world does not have, fails
  // with kMismatch, naming the values, before any data changes.
  bool refuse_absent_ranks = false;
  int world_size = 0;  // set by Checkpointer, except in a planner of the user's; 0: unknown
  // The names of opaque values (see Opaque) to load as they are, for the next save. A name also
  // stands for everything below it. Loading any other opaque value fails with kUnsupported, as does
  // loading one from a file of torch.save.
  std::vector<std::string> keep_opaque;
};

// Cairn's default planner; derive from it to change a hook.
//
// set_up_planner throws kAlreadyExists if two paths flatten to one name. create_local_plan throws
// kUnsupported for tensors that cannot be stored (such as sparse and quantized ones) and for leaves
// that cannot be pickled; the error names all of them. It keeps up to 256 MiB of serialised leaves
// for the writer; the others are serialised again when they are written.
class DefaultSavePlanner : public SavePlanner {
 public:
  explicit DefaultSavePlanner(SavePlannerOptions options = {});
  ~DefaultSavePlanner() override;
  void set_up_planner(const StateDict& state_dict, int rank, bool is_coordinator) override;
  SavePlan create_local_plan() override;
  // Merges the plans of all ranks. Does not reuse the plan of an earlier save. Throws the errors of
  // create_global_save_plan. Throws kMismatch unless the chunks of each tensor tile it exactly.
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override;
  SavePlan finish_plan(SavePlan new_plan) override;
  // Calls `lookup_object`, then `transform_object`.
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override;
  // Returns the part of the state dict that an item names: a view of its tensor, or the serialised
  // leaf. Override it to take parts from elsewhere.
  virtual ResolvedData lookup_object(const SavePlan& plan, const WriteItem& item);
  // Returns the data to write for the part that `lookup_object` returned; by default the part
  // itself. Override it to write other data. A tensor must keep its sizes and dtype; bytes may
  // change in length. `object` must not be changed in place, because it shares memory with the
  // state dict.
  virtual ResolvedData transform_object(const SavePlan& plan, const WriteItem& item, ResolvedData object);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Cairn's default planner; derive from it to change a hook.
//
// create_local_plan throws kNotFound if missing keys are the only problem, kUnsupported if
// unsupported types are the only problem, and kMismatch otherwise. Each error lists every problem,
// and is thrown before any data changes.
//
// Two tensors to fill may use exactly the same memory, such as tied weights under two keys, if the
// checkpoint has equal values for both. `compare_shared` then reads both, through the hooks of this
// planner, into host memory of their own: `lookup_tensor` returns that memory meanwhile. It throws
// kMismatch, naming both keys, if any byte differs. The plan reads only the first
// of them. create_local_plan throws kMismatch, naming both keys, if tensors share only some of
// their memory.
//
// This planner accepts three differences between the state dict and the checkpoint. A number may be
// stored as a 0-dim tensor, as PyTorch stores an optimizer's `step`. An empty dict may have no
// entry, because PyTorch does not store it. A checkpoint of PyTorch before 2.4 may store a
// container as one bytes object.
class DefaultLoadPlanner : public LoadPlanner {
 public:
  explicit DefaultLoadPlanner(LoadPlannerOptions options = {});
  ~DefaultLoadPlanner() override;
  void set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool is_coordinator) override;
  LoadPlan create_local_plan() override;
  void compare_shared(const ReadNow& read) override;
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override;
  LoadPlan finish_plan(LoadPlan central_plan) override;
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override;
  // Calls `lookup_tensor`, then `transform_tensor`.
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) override;
  // Returns the part of the state dict that an item fills, as a view. Override it to read into
  // another tensor, from which `commit_tensor` then copies.
  virtual torch::Tensor lookup_tensor(const LoadPlan& plan, const ReadItem& item);
  // Returns the tensor that the reader fills for that part: the part itself, or a temporary tensor
  // if the stored dtype differs or the part cannot be written directly. To change the data that was
  // read, return a separate tensor of the part's size and the stored dtype here. Then override
  // `commit_tensor`, and pass the changed tensor to `DefaultLoadPlanner::commit_tensor`.
  virtual torch::Tensor transform_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor);
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override;
  LoadReport report() const override;

 private:
  friend class Checkpointer;
  friend class KeyLoadPlanner;
  // Takes the names that `set_up_planner` will probably find, in their order, so that it copies
  // none of them.
  void expect(NameTable names);
  // Returns the report, and forgets it: in a large world, it may have a million names.
  LoadReport take_report();
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Returns a planner that loads everything below the given key prefixes. Pass an empty state dict to
// `load` (kInvalidArgument otherwise). The planner fills it with whole CPU tensors and values,
// nested as saved, for every stored name that equals a prefix or lies below one: "optimizer.state"
// matches "optimizer.state.…". An empty list of prefixes matches everything. `load` fails with
// kNotFound, naming the closest keys, if a prefix matches nothing. Leaves out opaque values that
// `keep_opaque` does not name, and lists them in its report.
std::unique_ptr<LoadPlanner> make_key_load_planner(std::vector<std::string> prefixes, std::vector<std::string> keep_opaque = {});

// Returns the metadata that a save of `state_dict` would write, as far as one rank knows it (DCP's
// create_default_metadata). For a sharded tensor made from a spec or a mesh, it lists the chunks of
// all ranks. For any other sharded tensor, it lists only the chunks of this rank. Values marked by
// `per_rank` are listed under the names of rank 0's values.
Metadata create_default_metadata(const StateDict& state_dict);

// Convert a leaf to and from the content of the bytes object that stores it (an archive of
// torch.save). Defined in state/leaf_bytes.cpp. `deserialize_leaf` throws kUnsupported for an
// opaque value, with the name of its class.
Bytes serialize_leaf(const Value& value);
Value deserialize_leaf(ByteSpan bytes);

}  // namespace cairn
