// The destinations of a load: the leaves of the caller's state dict, bound to names in the
// checkpoint. Shared by the load planners.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/base/mutex.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/state/planner.hpp>

namespace cairn {

// Limits the lists that a load makes by the paths in a checkpoint. Saved lists are whole, so nearly
// every element has a name. The limit stops damaged paths from creating huge empty lists.
class ListGrowth {
 public:
  explicit ListGrowth(const Metadata& metadata);
  // Call this before `set_at`. Throws kUnsupported if the lists on the way to `path` would grow by
  // more than is left.
  void add(const StateDict& state_dict, const std::string& name, const Path& path);

 private:
  std::uint64_t left_;
};

class LoadDestinations {
 public:
  // Borrows `state_dict` and `metadata` until destroyed.
  // `leave_out_opaque`: opaque values that are not kept are left out instead of being an error.
  LoadDestinations(StateDict& state_dict, const Metadata& metadata, LoadPlannerOptions options, bool leave_out_opaque = false);

  // Takes the names of the leaves that will probably be added, in this order, so that `add` copies
  // none of them. Call this first. If there are none, prepares for the leaves of the state dict.
  void expect(NameTable names);
  // Adds a leaf called `name` at `path`, to be filled from `storage_name` in the checkpoint. Throws
  // kAlreadyExists, naming both paths, if a leaf has that name. A tensor of the flattened state
  // dict that Cairn has stored as a tensor needs no path.
  void add(const std::string& name, const std::string& storage_name, Path path, const Value& value);

  // Returns the reads that fill all leaves. Throws one error that lists every problem, with the
  // code that DefaultLoadPlanner documents. Does not change the state dict.
  LoadPlan create_plan();
  // Implements the hook of LoadPlanner. `create_plan` must have returned.
  void compare_shared(const LoadPlanner::ReadNow& read);
  // Returns the names that the plan of the last `create_plan` skips.
  LoadReport report() const;
  // Returns the opaque values that were left out, as LoadReport::opaque lists them.
  std::vector<std::string> left_out() const;

  // Implement the hooks of DefaultLoadPlanner. Several threads may call them at once.
  torch::Tensor lookup_tensor(const LoadPlan& plan, const ReadItem& item);
  torch::Tensor transform_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor view);
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, const torch::Tensor& tensor);
  void load_bytes(const LoadPlan& plan, const ReadItem& item, const Bytes& bytes);

 private:
  struct Part {
    Box box;  // within the global tensor
    torch::Tensor tensor;
  };

  struct Destination {
    NameId id = 0;             // of its name; equals its own number
    std::string storage_name;  // "": the same
    Path path;                 // may be empty, see `add`
    std::size_t position = 0;  // in the metadata
    Extents size;              // the size of the global tensor
    std::vector<Part> parts;   // the parts of a tensor; for a number stored as a tensor, the temporary tensor that receives it
    bool is_tensor = false;
    bool is_number = false;
    bool is_blob = false;
    bool is_per_rank = false;
    bool is_if_stored = false;
    bool is_empty_dict = false;
    const char* type_name = "";
    c10::IValue number;
  };

  // A tensor to fill. Has pointers into `destinations_`.
  struct Filled {
    const Destination* destination;
    Part* part;
  };

  struct Problems {
    std::vector<std::string> missing;
    std::vector<std::string> mismatched;
    std::vector<std::string> unsupported;
  };

  NameId add_name(const std::string& name, const Path& path);
  void drop_expected_names();
  const std::string& name_of(const Destination& destination) const { return names_[destination.id]; }
  const std::string& stored_name_of(const Destination& destination) const {
    return destination.storage_name.empty() ? name_of(destination) : destination.storage_name;
  }
  std::string text_of(const Filled& filled) const;  // for errors: the name, and the part if there are several
  void plan_absent(const Destination& destination, LoadPlan& plan, Problems& problems);
  void plan_tensor(NameId id, const TensorStorageMetadata& stored, LoadPlan& plan, Problems& problems);
  void plan_shared(LoadPlan& plan, Problems& problems);
  bool prepare_number(Destination& destination, const TensorStorageMetadata& stored, Problems& problems);
  std::string hint_for_missing(const Destination& destination, std::size_t missing_before) const;
  bool is_expected(std::string_view stored_name, NameId& likely) const;
  std::optional<std::int64_t> rank_of(std::string_view stored_name) const;
  bool is_absent(std::int64_t rank) const;
  const Destination* stored_whole_above(const Destination& destination);
  const Destination& destination_of(const LoadPlan& plan, const ReadItem& item) const;
  void count_change_of(const Part& part) const;
  const Part& part_for(const Destination& destination, const ReadItem& item) const;
  void place(const Destination& destination, Value value);
  void leave_out(const Destination& destination, const std::string& opaque);

  StateDict* state_dict_;
  const Metadata* metadata_;
  LoadPlannerOptions options_;
  std::deque<Destination> destinations_;           // a deque, so that references to its elements stay valid
  NameTable names_;                                // of the destinations, in their order; before create_plan, expected ones follow
  std::vector<Filled> filled_;                     // all tensors that the last plan fills
  std::vector<std::pair<Filled, Filled>> shared_;  // use the same memory; the plan reads only the first
  bool is_compared_ = false;                       // `compare_shared` has found equal values
  bool has_per_rank_ = false;                      // some destination is of this rank alone
  LoadReport left_alone_;                          // `unexpected` is empty: `report` finds those names
  const bool leave_out_opaque_;
  mutable Mutex mutex_;  // guards the state dict while hooks replace leaves
  std::vector<std::string> left_out_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
