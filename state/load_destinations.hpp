// What a load fills: the leaves of the caller's state dict, bound to names of the checkpoint. Shared by the load planners.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/state/planner.hpp>

namespace cairn {

class LoadDestinations {
 public:
  // Borrows both until destroyed.
  LoadDestinations(StateDict& state_dict, const Metadata& metadata, LoadPlannerOptions options);

  // A leaf called `name` at `path`, to be filled with `storage_name` of the checkpoint. `name` is new.
  void add(std::string name, std::string storage_name, Path path, const Value& value);

  // The reads that fill everything, or one error with all that stands in the way. Changes nothing in the state dict.
  LoadPlan create_plan();

  // The hooks of LoadPlanner; any threads.
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item);
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, const torch::Tensor& tensor);
  void load_bytes(const LoadPlan& plan, const ReadItem& item, const Bytes& bytes);

 private:
  struct Part {
    Box box;  // within the global tensor
    torch::Tensor tensor;
  };

  struct Destination {
    std::string name;
    std::string storage_name;
    Path path;
    Extents size;             // of the global tensor
    std::vector<Part> parts;  // of tensors; for a number that is stored as a tensor, where it lands first
    bool is_tensor = false;
    bool is_number = false;
    bool is_blob = false;
    bool may_be_absent = false;  // the caller's value is kept if the checkpoint has none
    std::string type_name;
    c10::IValue number;
  };

  struct Problems {
    std::vector<std::string> missing;
    std::vector<std::string> mismatched;
    std::vector<std::string> unsupported;
  };

  void plan_absent(const Destination& destination, LoadPlan& plan, Problems& problems);
  void plan_tensor(Destination& destination, const TensorStorageMetadata& stored, LoadPlan& plan, Problems& problems);
  bool prepare_number(Destination& destination, const TensorStorageMetadata& stored, Problems& problems);
  const Destination* stored_whole_above(const Destination& destination);
  const Destination& destination_of(const LoadPlan& plan, const ReadItem& item) const;
  torch::Tensor view_of(const Destination& destination, const ReadItem& item) const;
  void place(const Destination& destination, Value value);

  StateDict* state_dict_;
  const Metadata* metadata_;
  LoadPlannerOptions options_;
  std::deque<Destination> destinations_;                    // references to them stay valid
  std::unordered_map<std::string, std::size_t> positions_;  // of destinations, by name
  std::mutex mutex_;                                        // guards the state dict against hooks that replace leaves
};

}  // namespace cairn
