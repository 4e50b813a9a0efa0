#include <cairn/runtime/checkpoints/async_hooks.hpp>

namespace cairn {

Future<WriteResults> AsyncWriter::write_data(const SavePlan& plan, SavePlanner& planner) {
  if (!leases_) return writer_.write_data(plan, planner);
  leases_->expect(plan);
  auto future = writer_.write_data(plan, planner);
  // `leases` outlives the future: the save ends after its data is written.
  if (future.valid()) future.on_ready([leases = leases_](const Future<WriteResults>&) { leases->end(); });
  return future;
}

ResolvedData AsyncPlanner::resolve_data(const SavePlan& plan, const WriteItem& item) {
  ResolvedData data = CountingSavePlanner::resolve_data(plan, item);
  if (leases_)
    if (auto* tensor = std::get_if<torch::Tensor>(&data)) *tensor = leases_->lend(plan, item, *tensor);
  return data;
}

}  // namespace cairn
