// Planners that sit between the actors and the real planner, and count the progress of a save or
// load on this rank. Internal.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <cairn/actors/call_progress.hpp>
#include <cairn/state/planner.hpp>

namespace cairn {

// Counts the items that the writer takes.
class CountingSavePlanner final : public SavePlanner {
 public:
  // Returns the state to plan, in place of the one that the call was made with. May wait or throw.
  using Begin = std::function<const StateDict&()>;
  // Returns what the writer gets of a tensor.
  using Lend = std::function<torch::Tensor(const SavePlan& plan, const WriteItem& item, const torch::Tensor& tensor)>;
  // `begin` and `lend` may be empty.
  CountingSavePlanner(SavePlanner& planner, CallProgress& progress, Begin begin = {}, Lend lend = {})
      : planner_(planner), progress_(progress), begin_(std::move(begin)), lend_(std::move(lend)) {}

  void set_up_planner(const StateDict& state_dict, int rank, bool is_coordinator) override {
    planner_.set_up_planner(begin_ ? begin_() : state_dict, rank, is_coordinator);
  }
  SavePlan create_local_plan() override { return planner_.create_local_plan(); }
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override {
    return planner_.create_global_plan(std::move(all_plans));
  }
  SavePlan finish_plan(SavePlan new_plan) override;
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override;

 private:
  SavePlanner& planner_;
  CallProgress& progress_;
  const Begin begin_;
  const Lend lend_;
};

// Counts the items that the reader has filled in.
class CountingLoadPlanner final : public LoadPlanner {
 public:
  CountingLoadPlanner(LoadPlanner& planner, CallProgress& progress) : planner_(planner), progress_(progress) {}

  void set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool is_coordinator) override {
    metadata_ = &metadata;
    planner_.set_up_planner(state_dict, metadata, rank, is_coordinator);
  }
  LoadPlan create_local_plan() override { return planner_.create_local_plan(); }
  void compare_shared(const ReadNow& read) override { planner_.compare_shared(read); }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override {
    return planner_.create_global_plan(std::move(all_plans));
  }
  LoadPlan finish_plan(LoadPlan central_plan) override;
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override;
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) override { return planner_.resolve_tensor(plan, item); }
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override;

 private:
  std::uint64_t bytes_of(const ReadItem& item) const;

  LoadPlanner& planner_;
  CallProgress& progress_;
  const Metadata* metadata_ = nullptr;
  std::vector<std::size_t> element_bytes_;  // as stored, by ReadItem::storage_name
};

}  // namespace cairn
