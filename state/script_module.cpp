#include <cairn/state/script_module.hpp>

#include <cairn/base/error.hpp>

namespace cairn {

ScriptModuleImpl::ScriptModuleImpl(torch::jit::Module script)
    : torch::nn::Module(script.type()->name() ? script.type()->name()->name() : "ScriptModule"), script_(std::move(script)) {
  // Registers the same tensors, not copies, so that both modules see every change.
  for (const auto& parameter : script_.named_parameters(/*recurse=*/false))
    register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  for (const auto& buffer : script_.named_buffers(/*recurse=*/false)) register_buffer(buffer.name, buffer.value);
  for (const auto& child : script_.named_children()) register_module(child.name, std::make_shared<ScriptModuleImpl>(child.value));
  torch::nn::Module::train(script_.is_training());
}

void ScriptModuleImpl::train(bool on) {
  script_.train(on);
  torch::nn::Module::train(on);
}

void ScriptModuleImpl::pretty_print(std::ostream& stream) const { stream << "ScriptModule(" << name() << ')'; }

torch::Tensor ScriptModuleImpl::forward(const torch::Tensor& input, std::vector<c10::IValue> more_arguments) {
  more_arguments.insert(more_arguments.begin(), input);
  const c10::IValue result = run(std::move(more_arguments));
  if (result.isTensor()) return result.toTensor();
  throw Error(ErrorCode::kUnsupported,
              "script module: forward returned " + result.tagKind() + ", not one tensor; call it by run()");
}

}  // namespace cairn
