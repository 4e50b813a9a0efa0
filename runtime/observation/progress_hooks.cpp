#include <cairn/runtime/observation/progress_hooks.hpp>

#include <variant>

#include <cairn/planning/dtype.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {
namespace {

std::uint64_t bytes_of_tensor(const WriteItem& item) { return item.type == WriteItemType::kByteIO ? 0 : item.payload_bytes(); }

}  // namespace

SavePlan CountingSavePlanner::finish_plan(SavePlan new_plan) {
  SavePlan plan = planner_.finish_plan(std::move(new_plan));
  std::uint64_t bytes = 0;
  for (const WriteItem& item : plan.items) bytes += bytes_of_tensor(item);
  progress_.start_moving(plan.items.size(), bytes);
  return plan;
}

ResolvedData CountingSavePlanner::resolve_data(const SavePlan& plan, const WriteItem& item) {
  ResolvedData data = planner_.resolve_data(plan, item);
  // Only after the planner has returned: if it throws, nothing was moved.
  progress_.add_item(bytes_of_tensor(item));
  if (auto* const tensor = lend_ ? std::get_if<torch::Tensor>(&data) : nullptr) *tensor = lend_(plan, item, *tensor);
  return data;
}

LoadPlan CountingLoadPlanner::finish_plan(LoadPlan central_plan) {
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

// Returns 0 for items that the plan or the metadata lacks: a user-defined planner may have made
// them.
std::uint64_t CountingLoadPlanner::bytes_of(const ReadItem& item) const {
  if (item.type != LoadItemType::kTensor || item.storage_name >= element_bytes_.size()) return 0;
  std::uint64_t bytes = element_bytes_[item.storage_name];
  for (const std::int64_t length : item.lengths) bytes *= static_cast<std::uint64_t>(length);
  return bytes;
}

void CountingLoadPlanner::load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) {
  planner_.load_bytes(plan, item, std::move(bytes));
  progress_.add_item(0);
}

void CountingLoadPlanner::commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) {
  planner_.commit_tensor(plan, item, std::move(tensor));
  progress_.add_item(bytes_of(item));
}

}  // namespace cairn
