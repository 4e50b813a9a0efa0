// The load planners: one fills the caller's state dict in place, the other makes it.
#include <algorithm>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/planning/closest_names.hpp>
#include <cairn/state/flat_leaf.hpp>
#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/load_destinations.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/rank_names.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {

struct DefaultLoadPlanner::Implementation {
  explicit Implementation(LoadPlannerOptions planner_options) : options(std::move(planner_options)) {}

  LoadDestinations& ready() {
    if (!destinations) throw Error(ErrorCode::kPrecondition, "load planner: set_up_planner must be called first");
    return *destinations;
  }

  LoadPlannerOptions options;
  std::optional<NameTable> expected;
  std::optional<LoadDestinations> destinations;
  LoadReport report;
};

DefaultLoadPlanner::DefaultLoadPlanner(LoadPlannerOptions options)
    : implementation_(std::make_unique<Implementation>(std::move(options))) {}
DefaultLoadPlanner::~DefaultLoadPlanner() = default;

void DefaultLoadPlanner::set_up_planner(StateDict& state_dict, const Metadata& metadata, int rank, bool /*is_coordinator*/) {
  Implementation& self = *implementation_;
  LoadDestinations& destinations = self.destinations.emplace(state_dict, metadata, self.options);
  // Only Checkpointer expects names, and plans no bytes object for the place of a tensor.
  const bool tensors_need_paths = !self.expected || !metadata.commit;
  destinations.expect(std::exchange(self.expected, std::nullopt).value_or(NameTable()));
  const auto add = [&](const std::string& fqn, Path path, const Value& value) {
    // Each rank reads its own value and keeps the caller's name for it.
    destinations.add(fqn, value.is_per_rank() ? rank_name(fqn, rank) : fqn, std::move(path), value);
  };
  // Names are flattened as the save planner did, so that they match those in the checkpoint.
  if (self.options.flatten_state_dict) {
    visit_leaves(state_dict, [&](const FlatLeaf& leaf) {
      const bool is_tensor = leaf.value.is_tensor() || leaf.value.is_sharded();
      add(leaf.name, is_tensor && !tensors_need_paths ? Path() : leaf.path(), leaf.marked());
    });
  } else {
    for (FlatEntry& entry : flatten_top_level(state_dict)) add(entry.fqn, std::move(entry.path), entry.value);
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

void DefaultLoadPlanner::expect(NameTable names) { implementation_->expected = std::move(names); }

LoadReport DefaultLoadPlanner::take_report() { return std::exchange(implementation_->report, {}); }

// Builds the state dict from the metadata, and then loads into it like the default planner.
class KeyLoadPlanner final : public DefaultLoadPlanner {
 public:
  KeyLoadPlanner(std::vector<std::string> prefixes, LoadPlannerOptions options)
      : DefaultLoadPlanner(std::move(options)), prefixes_(std::move(prefixes)) {}

  void set_up_planner(StateDict& state_dict, const Metadata& metadata, int /*rank*/, bool /*is_coordinator*/) override {
    if (!state_dict.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "load by keys: the state dict to load into must be empty; it is built from the checkpoint");
    }
    check_prefixes(metadata);
    // Borrows from the metadata, which stays alive until the attempt ends.
    std::unordered_map<std::string_view, const Path*> paths;
    for (const auto& [name, path] : metadata.planner_data) paths.emplace(name, &path);

    LoadDestinations& destinations = implementation_->destinations.emplace(state_dict, metadata, implementation_->options, true);
    std::string unsupported;
    ListGrowth growth(metadata);
    for (const auto& [name, entry] : metadata.state_dict_metadata) {
      if (!is_wanted(name)) continue;
      const auto nested = paths.find(name);
      const Path path = nested == paths.end() || nested->second->empty() ? Path{name} : *nested->second;
      Value value;
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
        const auto type = scalar_type_of(tensor->properties.dtype);
        if (!type) {
          unsupported += "\n  \"" + name + "\" is " + to_string(tensor->properties.dtype);
          continue;
        }
        volume(tensor->size);  // throws if the size is negative or overflows
        // The reader fills every element, so the memory need not be zeroed.
        value = with_torch("allocate \"" + name + "\" of size " + to_string(tensor->size),
                           [&] { return torch::empty(array_of(tensor->size), torch::TensorOptions().dtype(*type)); });
      }
      growth.add(state_dict, name, path);
      const Value* there = find_at(state_dict, path);
      if (there == nullptr || there->is_none()) {
        set_at(state_dict, path, value);
      } else if (value.is_tensor() || !there->is_dict()) {
        // An empty dict of one rank may be stored besides the values that other ranks had in it.
        throw Error(ErrorCode::kMismatch, "load by keys: \"" + name + "\" belongs at " + describe_path(path) + ", where " +
                                              there->type_name() + " of another name is; ask for one of them only");
      }
      destinations.add(name, name, path, value);
    }
    if (!unsupported.empty()) {
      throw Error(ErrorCode::kUnsupported, std::string("load by keys: this LibTorch (") + TORCH_VERSION +
                                               ") cannot hold these types; ask for other keys:" + unsupported);
    }
  }

  LoadReport report() const override {
    LoadReport report;
    if (implementation_->destinations) report.opaque = implementation_->destinations->left_out();
    return report;
  }

 private:
  bool is_wanted(const std::string& name) const {
    return prefixes_.empty() ||
           std::any_of(prefixes_.begin(), prefixes_.end(), [&](const std::string& prefix) { return is_below(name, prefix); });
  }

  void check_prefixes(const Metadata& metadata) const {
    std::string unknown;
    for (const std::string& prefix : prefixes_) {
      const auto& names = metadata.state_dict_metadata;
      if (std::any_of(names.begin(), names.end(), [&](const auto& named) { return is_below(named.first, prefix); })) continue;
      unknown += "\n  \"" + prefix + "\": " + closest_names_text(prefix, metadata);
    }
    if (!unknown.empty()) throw Error(ErrorCode::kNotFound, "load by keys: the checkpoint has nothing at or below:" + unknown);
  }

  const std::vector<std::string> prefixes_;
};

std::unique_ptr<LoadPlanner> make_key_load_planner(std::vector<std::string> prefixes, std::vector<std::string> keep_opaque) {
  LoadPlannerOptions options;
  options.keep_opaque = std::move(keep_opaque);
  return std::make_unique<KeyLoadPlanner>(std::move(prefixes), std::move(options));
}

}  // namespace cairn
