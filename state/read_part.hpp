// Reads tensors outside of a load, by plans that the caller makes. Used by conversions.
#pragma once

#include <string>

#include <torch/types.h>

#include <cairn/planning/metadata.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// The base of planners for plans that exist already. Discards bytes objects. A subclass that reads
// tensors must override `resolve_tensor`.
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

// Returns the elements of `box` of tensor `name` as a dense host tensor, in the carrier type of its
// dtype. `reader` must be set up with the metadata that contain `stored`. The chunks of `stored`
// should cover the box: elements outside of them are uninitialised. Throws what the reader throws.
torch::Tensor read_part(StorageReader& reader, const std::string& name, const TensorStorageMetadata& stored, const Box& box);

// Copies elements of a file into a tensor of a load. `from` has the carrier type of `stored`.
// Throws kUnsupported if LibTorch lacks the type and `to` has another type than `from`.
void copy_elements(const std::string& name, DType stored, const torch::Tensor& from, const torch::Tensor& to);

}  // namespace cairn
