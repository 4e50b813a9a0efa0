#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

// Goes module by module, as PyTorch's state_dict does. LibTorch's recursive lists have parameters
// or buffers, not both in turn.
void collect(const torch::nn::Module& module, const std::string& prefix, Dict& dict) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    // Undefined ones stand for options of a layer, such as bias=False. PyTorch leaves them out as
    // well.
    if (parameter.value().defined()) dict.insert(prefix + parameter.key(), as_declared(parameter.value(), parameter.value()));
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    if (buffer.value().defined()) dict.insert(prefix + buffer.key(), as_declared(buffer.value(), buffer.value()));
  }
  for (const auto& child : module.named_children()) collect(*child.value(), prefix + child.key() + '.', dict);
}

class ModuleState final : public Stateful {
 public:
  explicit ModuleState(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}
  Dict state_dict() override { return module_state_dict(*module_); }
  void load_state_dict(const Dict& state_dict) override { load_module_state_dict(*module_, state_dict); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

Dict module_state_dict(const torch::nn::Module& module) {
  Dict dict;
  collect(module, "", dict);
  return dict;
}

void load_module_state_dict(torch::nn::Module& module, const Dict& state_dict) {
  const Dict live = module_state_dict(module);
  std::string problems;
  // Collected first, so that nothing changes if anything does not fit.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;  // destination, source
  for (const auto& [name, value] : live) {
    const Value* given = state_dict.find(name);
    if (given == nullptr) {
      problems += "\n  \"" + name + "\" is missing";
      continue;
    }
    const auto to = part_in(value);
    const auto from = part_in(*given);
    check_invariant(to.has_value(), "a module's own state dict holds something that is not a tensor");
    if (!from || !from->can_replace(*to) || !to->can_replace(*to)) {
      problems += "\n  \"" + name + "\" is " + describe_part(*given) + ", the module has " + describe_part(value);
    // Equal tensors were filled in place by the load.
    } else if (from->tensor.unsafeGetTensorImpl() != to->tensor.unsafeGetTensorImpl()) {
      copies.emplace_back(to->tensor, from->tensor);
    }
  }
  for (const auto& [name, value] : state_dict) {
    if (!live.contains(name)) problems += "\n  \"" + name + "\" is not in the module";
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::kMismatch,
                "load a module's state dict: it does not fit the module; this call changed nothing:" + problems);
  }
  // In-place changes of parameters that require gradients are an error outside of this guard.
  const torch::NoGradGuard no_grad;
  for (auto& [to, from] : copies) {
    with_torch("load a module's state dict", [&to = to, &from = from] { to.copy_(from); });
  }
}

std::shared_ptr<Stateful> stateful(std::shared_ptr<torch::nn::Module> module) {
  if (!module) throw Error(ErrorCode::kInvalidArgument, "state dict: a module is a null pointer; leave its key out");
  return std::make_shared<ModuleState>(std::move(module));
}

Value::Value(std::shared_ptr<torch::nn::Module> module) : Value(cairn::stateful(std::move(module))) {}

}  // namespace cairn
