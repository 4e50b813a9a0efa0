// What differs between the LibTorch versions that training builds against (1.13 and 2.x), and what of their inner parts it uses.
// Nothing else in `training` asks for the version.
#pragma once

#include <memory>
#include <type_traits>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>
#include <torch/version.h>

namespace cairn::training {

// LibTorch 1.13 and 2.x keep this key, before all others, for tensors that wrap what another tensor does, and use it in their own tests
// only. Tensors of sharded parameters carry it: see gather_on_use.hpp.
inline constexpr c10::DispatchKey kShardedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
// Another such key, before that one. Parameters of parallel layers carry it: see parallel_parameter.hpp.
inline constexpr c10::DispatchKey kParallelKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Members that LibTorch keeps to derived classes.
struct OpenTensorImpl : c10::TensorImpl {
  using c10::TensorImpl::key_set_;
};
struct OpenModule : torch::nn::Module {
  using torch::nn::Module::parameters_;
};

// Owns a node of the graph: a std::shared_ptr until some 2.x, an intrusive pointer since.
using NodePointer = decltype(torch::autograd::Edge::function);
inline constexpr bool kNodesAreShared = std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>;

template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (kNodesAreShared) {
    return NodePointer(new Node(std::forward<Arguments>(arguments)...), [](Node* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

// To a node that is owned already.
template <class Node, class Pointer = NodePointer>
Pointer pointer_to(Node& node) {
  if constexpr (kNodesAreShared) {
    return node.shared_from_this();
  } else {
    return Pointer::reclaim_copy(&node);
  }
}

// Whether, and in which type, operations of the calling thread are done in a lower precision.
struct Autocast {
  bool enabled;
  at::ScalarType type;
};
#if TORCH_VERSION_MAJOR >= 2
inline Autocast autocast_on(at::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}
inline void set_autocast_on(at::DeviceType device, Autocast autocast) {
  at::autocast::set_autocast_enabled(device, autocast.enabled);
  at::autocast::set_autocast_dtype(device, autocast.type);
}
#else
inline Autocast autocast_on(at::DeviceType device) {
  if (device == at::kCPU) return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
}
inline void set_autocast_on(at::DeviceType device, Autocast autocast) {
  if (device == at::kCPU) {
    at::autocast::set_cpu_enabled(autocast.enabled);
    at::autocast::set_autocast_cpu_dtype(autocast.type);
  } else {
    at::autocast::set_enabled(autocast.enabled);
    at::autocast::set_autocast_gpu_dtype(autocast.type);
  }
}
#endif

inline void mark_with(const torch::Tensor& tensor, c10::DispatchKey key) {
  auto member = &OpenTensorImpl::key_set_;
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->*member = (impl->*member).add(key);
}
inline void mark_as_sharded(const torch::Tensor& tensor) { mark_with(tensor, kShardedKey); }
// `tensor`, or an alias of it that does not carry kShardedKey.
inline torch::Tensor without_sharded_mark(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kShardedKey)) return tensor;
  torch::Tensor alias = tensor.detach();
  auto member = &OpenTensorImpl::key_set_;
  c10::TensorImpl* const impl = alias.unsafeGetTensorImpl();
  impl->*member = (impl->*member).remove(kShardedKey);
  return alias;
}

inline torch::OrderedDict<std::string, torch::Tensor>& registered_parameters(torch::nn::Module& module) {
  auto member = &OpenModule::parameters_;
  return module.*member;
}

// Whether the calling thread works on a backward pass.
inline bool in_backward_pass() { return torch::autograd::get_current_graph_task_nodes_in_graph() != nullptr; }

// Calls `work` at the end of the backward pass that the calling thread works on.
inline void at_end_of_backward(std::function<void()> work) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(work));
}

}  // namespace cairn::training
