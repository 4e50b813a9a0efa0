// Planners that sit between the actors and the real planner, and count the progress of a save or
// load on this rank. Internal.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <cairn/actors/call_progress.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/state/planner.hpp>

namespace cairn {

// Counts the items that the writer takes.
class CountingSavePlanner : public SavePlanner {
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
  SavePlan finish_plan(SavePlan new_plan) override {
    SavePlan plan = planner_.finish_plan(std::move(new_plan));
    std::uint64_t bytes = 0;
    for (const WriteItem& item : *plan.items) bytes += bytes_of_tensor(item);
    progress_.start_moving(plan.items.size(), bytes);
    return plan;
  }
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override {
    ResolvedData data = planner_.resolve_data(plan, item);
    // Only after the planner has returned: if it throws, nothing was moved.
    progress_.add_item(bytes_of_tensor(item));
    if (auto* const tensor = lend_ ? std::get_if<torch::Tensor>(&data) : nullptr) *tensor = lend_(plan, item, *tensor);
    return data;
  }

 private:
  static std::uint64_t bytes_of_tensor(const WriteItem& item) {
    return item.type == WriteItemType::kByteIO ? 0 : item.payload_bytes();
  }

  SavePlanner& planner_;
  CallProgress& progress_;
  const Begin begin_;
  const Lend lend_;
};

// Counts the items that the reader has filled in.
class CountingLoadPlanner : public LoadPlanner {
 public:
  // `rank`, if any, replaces the rank of the call.
  CountingLoadPlanner(LoadPlanner& planner, CallProgress& progress, std::optional<int> rank = std::nullopt)
      : planner_(planner), progress_(progress), rank_(rank) {}

  void set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool is_coordinator) override {
    metadata_ = &metadata;
    planner_.set_up_planner(state_dict, metadata, rank_.value_or(rank), is_coordinator);
  }
  LoadPlan create_local_plan() override { return planner_.create_local_plan(); }
  void compare_shared(const ReadNow& read) override { planner_.compare_shared(read); }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override {
    return planner_.create_global_plan(std::move(all_plans));
  }
  LoadPlan finish_plan(LoadPlan central_plan) override {
    LoadPlan plan = planner_.finish_plan(std::move(central_plan));
    element_bytes_.assign(plan.names.size(), 0);
    std::uint64_t bytes = 0;
    for (const ReadItem& item : plan.items) {
      if (item.type == LoadItemType::kTensor && item.storage_name < element_bytes_.size()) {
        // Looked up once per name, because a tensor may have many items.
        std::size_t& element = element_bytes_[item.storage_name];
        const auto* entry = element == 0 ? metadata_->find(plan.names[item.storage_name]) : nullptr;
        if (const auto* tensor = entry ? std::get_if<TensorStorageMetadata>(entry) : nullptr)
          element = element_size(tensor->properties.dtype);
      }
      bytes += bytes_of(item);
    }
    progress_.start_moving(plan.items.size(), bytes);
    return plan;
  }
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override {
    planner_.load_bytes(plan, item, std::move(bytes));
    progress_.add_item(0);
  }
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) override { return planner_.resolve_tensor(plan, item); }
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override {
    planner_.commit_tensor(plan, item, std::move(tensor));
    progress_.add_item(bytes_of(item));
  }

 private:
  // Returns 0 for items that the plan or the metadata lacks: a user-defined planner may have made
  // them.
  std::uint64_t bytes_of(const ReadItem& item) const {
    if (item.type != LoadItemType::kTensor || item.storage_name >= element_bytes_.size()) return 0;
    std::uint64_t bytes = element_bytes_[item.storage_name];
    for (const std::int64_t length : item.lengths) bytes *= static_cast<std::uint64_t>(length);
    return bytes;
  }

  LoadPlanner& planner_;
  CallProgress& progress_;
  const std::optional<int> rank_;
  const Metadata* metadata_ = nullptr;
  std::vector<std::size_t> element_bytes_;  // as stored, by ReadItem::storage_name
};

}  // namespace cairn
