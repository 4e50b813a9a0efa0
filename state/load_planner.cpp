// The default load planner: fills the caller's state dict in place.
#include <cairn/state/load_destinations.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/rank_names.hpp>

#include <cairn/base/error.hpp>

namespace cairn {

struct DefaultLoadPlanner::Implementation {
  explicit Implementation(LoadPlannerOptions planner_options) : options(planner_options) {}

  LoadDestinations& ready() {
    if (!destinations) throw Error(ErrorCode::kPrecondition, "load planner: set_up_planner must be called first");
    return *destinations;
  }

  LoadPlannerOptions options;
  std::optional<LoadDestinations> destinations;
  LoadReport report;
};

DefaultLoadPlanner::DefaultLoadPlanner(LoadPlannerOptions options) : implementation_(std::make_unique<Implementation>(options)) {}
DefaultLoadPlanner::~DefaultLoadPlanner() = default;

void DefaultLoadPlanner::set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool /*is_coordinator*/) {
  Implementation& self = *implementation_;
  LoadDestinations& destinations = self.destinations.emplace(state_dict, metadata, self.options);
  // Names are flattened as the save planner did, so that they match those in the checkpoint.
  for (FlatEntry& entry : self.options.flatten_state_dict ? flatten(state_dict) : flatten_top_level(state_dict)) {
    // Each rank reads its own value and keeps the caller's name for it.
    std::string storage_name = entry.value.is_per_rank() ? rank_name(entry.fqn, rank) : entry.fqn;
    destinations.add(std::move(entry.fqn), std::move(storage_name), std::move(entry.path), entry.value);
  }
}

LoadPlan DefaultLoadPlanner::create_local_plan() {
  LoadDestinations& destinations = implementation_->ready();
  LoadPlan plan = destinations.create_plan();
  implementation_->report = destinations.report();  // now, because the metadata lives only as long as the attempt
  return plan;
}

void DefaultLoadPlanner::compare_shared(const ReadNow& read) {
  // A derived class may have planned by other means without setting up this planner.
  if (implementation_->destinations) implementation_->destinations->compare_shared(read);
}

std::vector<LoadPlan> DefaultLoadPlanner::create_global_plan(std::vector<LoadPlan> all_plans) { return all_plans; }

LoadPlan DefaultLoadPlanner::finish_plan(LoadPlan central_plan) { return central_plan; }

void DefaultLoadPlanner::load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) {
  implementation_->ready().load_bytes(plan, item, bytes);
}

torch::Tensor DefaultLoadPlanner::resolve_tensor(const LoadPlan& plan, const ReadItem& item) {
  return transform_tensor(plan, item, lookup_tensor(plan, item));
}

torch::Tensor DefaultLoadPlanner::lookup_tensor(const LoadPlan& plan, const ReadItem& item) {
  return implementation_->ready().lookup_tensor(plan, item);
}

torch::Tensor DefaultLoadPlanner::transform_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) {
  return implementation_->ready().transform_tensor(plan, item, std::move(tensor));
}

void DefaultLoadPlanner::commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) {
  implementation_->ready().commit_tensor(plan, item, tensor);
}

LoadReport DefaultLoadPlanner::report() const { return implementation_->report; }

}  // namespace cairn
