#include <cairn/state/script_module.hpp>

#include <optional>

#include <torch/csrc/jit/runtime/graph_executor.h>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// Returns whether a kernel of cairn::training runs before LibTorch's whenever an operation uses a
// parameter of the script. Only then does the parameter have memory.
bool gathers_on_use(const torch::jit::Module& script) {
  const c10::DispatchKeySet marks{c10::DispatchKey::TESTING_ONLY_GenericWrapper, c10::DispatchKey::TESTING_ONLY_GenericMode};
  for (const torch::Tensor& parameter : script.parameters())
    if (parameter.key_set().has_any(marks)) return true;
  return false;
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(const torch::jit::Module& script)
    : torch::nn::Module(script.type()->name() ? script.type()->name()->name() : "ScriptModule"), script_(script) {
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

c10::IValue ScriptModuleImpl::run(std::vector<c10::IValue> arguments) {
  // The executor fuses operations into kernels that read memory without the dispatcher.
  std::optional<torch::jit::GraphOptimizerEnabledGuard> as_written;
  if (gathers_on_use(script_)) as_written.emplace(false);
  return script_.forward(std::move(arguments));
}

torch::Tensor ScriptModuleImpl::forward(const torch::Tensor& input, std::vector<c10::IValue> more_arguments) {
  more_arguments.insert(more_arguments.begin(), input);
  const c10::IValue result = run(std::move(more_arguments));
  if (result.isTensor()) return result.toTensor();
  throw Error(ErrorCode::kUnsupported,
              "script module: forward returned " + result.tagKind() + ", not one tensor; call it by run()");
}

}  // namespace cairn
