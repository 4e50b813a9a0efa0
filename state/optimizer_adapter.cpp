// State dicts of LibTorch's optimizers.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/optimizer_fields.hpp>
#include <cairn/state/optimizer_loading.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

using torch::optim::Optimizer;

// The state of an optimizer, or the states of several in one dict.
class OptimizersState final : public FittedStateful {
 public:
  OptimizersState(std::vector<std::shared_ptr<Optimizer>> optimizers, std::shared_ptr<torch::nn::Module> module)
      : optimizers_(std::move(optimizers)), module_(std::move(module)) {}
  Dict state_dict() override {
    owners();
    std::vector<Part> parts;
    // PyTorch lists the groups of one optimizer after those of another.
    std::size_t groups = 0;
    for (const auto& optimizer : optimizers_) {
      parts.push_back({optimizer_state_dict(*optimizer, module_.get()), {}});
      for (std::size_t i = 0; i < optimizer->param_groups().size(); ++i) parts.back().groups.push_back(groups++);
    }
    return joined(parts);
  }
  void load_state_dict(const Dict& state_dict) override { load(split(state_dict), WithoutState::kFresh); }
  // No decision depends on the number of steps, and there is one for each parameter.
  bool needs(const Path& path) const override { return path.size() != 3 || path.back() != PathElement("step"); }
  Fitted fit(const Dict& stored) override {
    // The planner reports that there are no groups.
    const Value* groups = stored.find("param_groups");
    if (groups == nullptr || !groups->is_list() || groups->list().empty()) return {state_dict(), {}};
    std::vector<Part> fitted = split(stored);
    for (std::size_t i = 0; i < fitted.size(); ++i)
      fitted[i].dict = fit_optimizer_state(*optimizers_[i], fitted[i].dict, module_.get());
    return {joined(fitted), [this, fitted](const Dict& filled) { load(split(filled), WithoutState::kFitted, fitted); }};
  }

 private:
  struct Part {
    Dict dict;
    std::vector<std::size_t> groups;  // their positions in the joined dict
  };

  // Returns the positions of the optimizers by the names of their parameters.
  std::unordered_map<std::string, std::size_t> owners() const {
    std::unordered_map<std::string, std::size_t> found;
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      for (const auto& group : named_parameters(*optimizers_[i], module_.get()))
        for (const NamedParameter& named : group)
          if (!found.emplace(named.name, i).second)
            throw Error(ErrorCode::kMismatch, "state of several optimizers: two of them train \"" + named.name +
                                                  "\"; save each optimizer under a key of its own");
    return found;
  }

  // Gives each optimizer the states of its parameters, and the groups that begin with one of them.
  // A group without parameters goes to the first.
  std::vector<Part> split(const Dict& joined) const {
    if (optimizers_.size() == 1) return {{joined, {}}};
    const auto owner = owners();
    std::vector<Part> parts(optimizers_.size());
    for (Part& part : parts) part.dict = {{"state", Dict{}}, {"param_groups", List{}}};
    if (const Value* state = joined.find("state"); state != nullptr && state->is_dict())
      for (const auto& [name, fields] : state->dict()) {
        const auto found = owner.find(name);  // the first optimizer reports what belongs to none
        parts[found == owner.end() ? 0 : found->second].dict["state"].dict().insert(name, fields);
      }
    const Value* const groups = joined.find("param_groups");
    for (std::size_t i = 0; groups != nullptr && groups->is_list() && i < groups->list().size(); ++i) {
      const Value& group = groups->list()[i];
      const Value* const names = group.is_dict() ? group.dict().find("params") : nullptr;
      const auto listed = names != nullptr ? names_in(*names) : std::nullopt;
      const auto found = listed && !listed->empty() ? owner.find(*listed->begin()) : owner.end();
      Part& part = parts[found == owner.end() ? 0 : found->second];
      part.dict["param_groups"].list().push_back(group);
      part.groups.push_back(i);
    }
    return parts;
  }

  // Puts the groups back in their order in the whole dict, which positions in "params" refer to.
  static Dict joined(const std::vector<Part>& parts) {
    if (parts.size() == 1) return parts.front().dict;
    Dict state;
    std::map<std::size_t, Value> groups;
    for (const Part& part : parts) {
      for (const auto& [name, fields] : part.dict.at("state").dict()) state.insert(name, fields);
      const List& own = part.dict.at("param_groups").list();
      for (std::size_t i = 0; i < own.size(); ++i) groups.emplace(part.groups.at(i), own[i]);
    }
    List list;
    for (auto& [position, group] : groups) list.push_back(std::move(group));
    return {{"state", std::move(state)}, {"param_groups", std::move(list)}};
  }

  // Changes nothing unless every optimizer's part fits.
  void load(const std::vector<Part>& parts, WithoutState without_state, const std::vector<Part>& fitted = {}) const {
    std::vector<std::function<void()>> loads;
    for (std::size_t i = 0; i < parts.size(); ++i)
      loads.push_back(prepare_optimizer_load(*optimizers_[i], parts[i].dict, module_.get(), without_state,
                                             fitted.empty() ? Dict{} : fitted[i].dict));
    for (const auto& apply : loads) apply();
  }

  std::vector<std::shared_ptr<Optimizer>> optimizers_;
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

std::vector<std::vector<NamedParameter>> named_parameters(Optimizer& optimizer, const torch::nn::Module* module) {
  // Compares identities: an optimizer holds the module's own tensors and does not know their names.
  // The first name of a tied parameter counts.
  std::unordered_map<const void*, std::string> known;
  if (module != nullptr) {
    for (const auto& parameter : module->named_parameters())
      known.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  std::vector<std::vector<NamedParameter>> named;
  std::unordered_set<const void*> listed;
  for (const auto& group : optimizer.param_groups()) {
    named.emplace_back();
    for (const torch::Tensor& parameter : group.params()) {
      // PyTorch numbers parameters across all groups.
      const std::string number = std::to_string(listed.size());
      if (!listed.insert(parameter.unsafeGetTensorImpl()).second) continue;
      if (module == nullptr) {
        named.back().push_back({number, parameter});
        continue;
      }
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found == known.end()) {
        throw Error(ErrorCode::kMismatch, "state of an optimizer: its parameter " + number +
                                              " is not one of the module's; pass the module that the optimizer trains, or none");
      }
      named.back().push_back({found->second, parameter});
    }
  }
  return named;
}

List names_of(const std::vector<NamedParameter>& group, bool are_numbers) {
  List names;
  for (const NamedParameter& named : group)
    names.push_back(are_numbers ? Value(std::int64_t{std::stoll(named.name)}) : Value(named.name));
  return names;
}

Dict optimizer_state_dict(Optimizer& optimizer, const torch::nn::Module* module) {
  return with_kind(optimizer, [&](auto tag) {
    using Kind = typename decltype(tag)::type;
    const torch::NoGradGuard no_grad;
    const auto state_for = [&](const NamedParameter& named, const typename Kind::Options& options) -> std::optional<Dict> {
      auto& states = optimizer.state();
      const OptimizerStateKey key = optimizer_state_key(named.parameter);
      auto held = states.find(key);
      std::unique_ptr<typename Kind::State> apart;  // kept outside the optimizer, where it would change the training
      if (held == states.end() && named.parameter.requires_grad() && Kind::keeps_state(options)) {
        apart = with_torch("begin the state of \"" + named.name + '"', [&] { return begin_state<Kind>(options, named.parameter); });
        // From here on the optimizer uses these tensors, so that a load can fill them in place.
        if (Kind::begins_as_absent(options)) held = states.emplace(key, std::exchange(apart, nullptr)).first;
      }
      if (held != states.end()) return state_of<Kind>(static_cast<typename Kind::State&>(*held->second), named.parameter);
      return apart ? std::optional<Dict>(state_of<Kind>(*apart, named.parameter)) : std::nullopt;
    };
    return described_optimizer<Kind>(optimizer, named_parameters(optimizer, module), module == nullptr, state_for,
                                     [&](std::size_t group) { return other_options<typename Kind::Options>(optimizer, group); });
  });
}

void load_optimizer_state_dict(Optimizer& optimizer, const Dict& state_dict, const torch::nn::Module* module) {
  prepare_optimizer_load(optimizer, state_dict, module, WithoutState::kFresh)();
}

std::shared_ptr<Stateful> stateful(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<torch::nn::Module> module) {
  if (!optimizer) throw Error(ErrorCode::kInvalidArgument, "state dict: an optimizer is a null pointer; leave its key out");
  return std::make_shared<OptimizersState>(std::vector{std::move(optimizer)}, std::move(module));
}

std::shared_ptr<Stateful> stateful(std::vector<std::shared_ptr<Optimizer>> optimizers, std::shared_ptr<torch::nn::Module> module) {
  if (!module || optimizers.empty() || std::find(optimizers.begin(), optimizers.end(), nullptr) != optimizers.end())
    throw Error(ErrorCode::kInvalidArgument, "state dict: several optimizers need their module, and none of them may be null");
  return std::make_shared<OptimizersState>(std::move(optimizers), std::move(module));
}

Value::Value(std::shared_ptr<Optimizer> optimizer) : Value(cairn::stateful(std::move(optimizer))) {}

}  // namespace cairn
