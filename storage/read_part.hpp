// Reads by ready-made plans, outside of a load, for conversions.
#pragma once

#include <string>

#include <torch/types.h>

#include <cairn/planning/metadata.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// The base of planners for ready-made plans. Drops what is read, unless a subclass takes it.
class ReadyPlan : public LoadPlanner {
 public:
  void set_up_planner(StateDict&, const Metadata&, int, bool) override {}
  LoadPlan create_local_plan() override { return {}; }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override { return all_plans; }
  LoadPlan finish_plan(LoadPlan central_plan) override { return central_plan; }
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes) override {}
  torch::Tensor resolve_tensor(const LoadPlan&, const ReadItem&) override { return {}; }
  void commit_tensor(const LoadPlan&, const ReadItem&, torch::Tensor) override {}
};

// Returns the elements of `box` of tensor `name`, dense, in memory, in the carrier_type_of its
// dtype. `reader` was set up with the metadata that contain `stored`. The chunks of `stored` must
// cover the box; elements that they lack have any value. Throws what the reader throws.
torch::Tensor read_part(StorageReader& reader, const std::string& name, const TensorStorageMetadata& stored, const Box& box);

}  // namespace cairn
