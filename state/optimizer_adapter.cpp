// State dicts of LibTorch's optimizers.
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

class OptimizerState final : public FittedStateful {
 public:
  OptimizerState(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<torch::nn::Module> module)
      : optimizer_(std::move(optimizer)), module_(std::move(module)) {}
  Dict state_dict() override { return optimizer_state_dict(*optimizer_, module_.get()); }
  void load_state_dict(const Dict& state_dict) override { load_optimizer_state_dict(*optimizer_, state_dict, module_.get()); }
  // No decision depends on the number of steps, and there is one for each parameter.
  bool needs(const Path& path) const override { return path.size() != 3 || path.back() != PathElement("step"); }
  Fitted fit(const Dict& stored) override {
    // The planner reports that there are no groups.
    const Value* groups = stored.find("param_groups");
    if (groups == nullptr || !groups->is_list() || groups->list().empty()) return {state_dict(), {}};
    const Dict state = fit_optimizer_state(*optimizer_, stored, module_.get());
    return {state, [this, state](const Dict& filled) {
              prepare_optimizer_load(*optimizer_, filled, module_.get(), WithoutState::kFitted, state)();
            }};
  }

 private:
  std::shared_ptr<Optimizer> optimizer_;
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
        if (Kind::begins_as_absent(options)) held = states.emplace(key, std::move(apart)).first;
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
  return std::make_shared<OptimizerState>(std::move(optimizer), std::move(module));
}

Value::Value(std::shared_ptr<Optimizer> optimizer) : Value(cairn::stateful(std::move(optimizer))) {}

}  // namespace cairn
