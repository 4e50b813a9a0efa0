// Loads everything below given names, without a template.
#include <algorithm>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/planning/closest_names.hpp>
#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/load_destinations.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Builds the state dict from the metadata, and then loads into it like the default planner.
class KeyLoadPlanner final : public LoadPlanner {
 public:
  KeyLoadPlanner(std::vector<std::string> prefixes, std::vector<std::string> keep_opaque) : prefixes_(std::move(prefixes)) {
    options_.keep_opaque = std::move(keep_opaque);
  }

  void set_up_planner(StateDict& state_dict, const Metadata& metadata, int /*rank*/, bool /*is_coordinator*/) override {
    if (!state_dict.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "load by keys: the state dict to load into must be empty; it is built from the checkpoint");
    }
    check_prefixes(metadata);
    // Borrows from the metadata, which stays alive until the attempt ends.
    std::unordered_map<std::string_view, const Path*> paths;
    for (const auto& [name, path] : metadata.planner_data) paths.emplace(name, &path);

    LoadDestinations& destinations = destinations_.emplace(state_dict, metadata, options_, true);
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

  // From here on everything is as for the default planner: the destinations know where to read.
  LoadPlan create_local_plan() override { return ready().create_plan(); }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) override { return all_plans; }
  LoadPlan finish_plan(LoadPlan central_plan) override { return central_plan; }
  void load_bytes(const LoadPlan& plan, const ReadItem& item, Bytes bytes) override { ready().load_bytes(plan, item, bytes); }
  torch::Tensor resolve_tensor(const LoadPlan& plan, const ReadItem& item) override {
    return ready().transform_tensor(plan, item, ready().lookup_tensor(plan, item));
  }
  void commit_tensor(const LoadPlan& plan, const ReadItem& item, torch::Tensor tensor) override {
    ready().commit_tensor(plan, item, tensor);
  }
  LoadReport report() const override {
    LoadReport report;
    if (destinations_) report.opaque = destinations_->left_out();
    return report;
  }

 private:
  LoadDestinations& ready() {
    if (!destinations_) throw Error(ErrorCode::kPrecondition, "load planner: set_up_planner must be called first");
    return *destinations_;
  }

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

  std::vector<std::string> prefixes_;
  LoadPlannerOptions options_;
  std::optional<LoadDestinations> destinations_;
};

}  // namespace

std::unique_ptr<LoadPlanner> make_key_load_planner(std::vector<std::string> prefixes, std::vector<std::string> keep_opaque) {
  return std::make_unique<KeyLoadPlanner>(std::move(prefixes), std::move(keep_opaque));
}

}  // namespace cairn
