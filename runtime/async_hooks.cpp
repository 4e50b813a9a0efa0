#include <cairn/runtime/async_hooks.hpp>

namespace cairn {

void AsyncWriter::begin_turn() {
  had_turn_ = true;
  writer_.reset(checkpoint_id_);
}

Future<WriteResults> AsyncWriter::write_data(const SavePlan& plan, SavePlanner& planner) {
  if (leases_) leases_->expect(plan);
  auto future = writer_.write_data(plan, planner);
  if (!future.valid()) return future;
  // Counts and leases outlive the data: the save ends after it.
  future.on_ready([&counts = counts_, leases = leases_](const Future<WriteResults>&) {
    counts.step = SaveProgress::Step::kPublishing;
    if (leases) leases->end();
  });
  return future;
}

SavePlan AsyncPlanner::finish_plan(SavePlan new_plan) {
  SavePlan plan = planner_.finish_plan(std::move(new_plan));
  std::uint64_t bytes = 0;
  for (const WriteItem& item : plan.items)
    if (item.type != WriteItemType::kByteIO) bytes += item.payload_bytes();
  counts_.items = plan.items.size();
  counts_.bytes = bytes;
  counts_.writing_since = system_clock().now().time_since_epoch().count();
  counts_.step = SaveProgress::Step::kWriting;
  return plan;
}

ResolvedData AsyncPlanner::resolve_data(const SavePlan& plan, const WriteItem& item) {
  ResolvedData data = planner_.resolve_data(plan, item);
  ++counts_.items_done;
  if (item.type != WriteItemType::kByteIO) counts_.bytes_done += item.payload_bytes();
  if (leases_)
    if (auto* tensor = std::get_if<torch::Tensor>(&data)) *tensor = leases_->lend(plan, item, *tensor);
  return data;
}

}  // namespace cairn
