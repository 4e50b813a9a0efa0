// The base of planners for plans that exist already. Internal.
#pragma once

#include <vector>

#include <cairn/state/planner.hpp>

namespace cairn {

// Discards bytes objects. A subclass that reads tensors must override `resolve_tensor`.
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

}  // namespace cairn
