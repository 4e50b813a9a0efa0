// Hides the differences between the LibTorch versions that training supports (1.13 and 2.x), and
// the use of LibTorch internals. Apart from C10dGroup in c10d_groups.hpp, nothing else in
// `training` tests the version.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/version.h>

namespace cairn::training {

// LibTorch 1.13 and 2.x reserve this key, which comes before most others, for wrapper tensors and
// use it only in their own tests. Tensors of sharded parameters carry it: see gather_on_use.cpp.
inline constexpr c10::DispatchKey kShardedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
// Another key for wrapper tensors, which comes before kShardedKey. Parameters of parallel layers
// carry it: see parallel_parameter.hpp.
inline constexpr c10::DispatchKey kParallelKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Give access to protected and private members of LibTorch.
struct OpenTensorImpl : c10::TensorImpl {
  using c10::TensorImpl::key_set_;
};
struct OpenModule : torch::nn::Module {
  using torch::nn::Module::parameters_;
};

// Owns a node of the graph: a std::shared_ptr in older versions, an intrusive pointer in newer 2.x.
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

// Returns an owning pointer to a node that already has an owner.
template <class Node, class Pointer = NodePointer>
Pointer pointer_to(Node& node) {
  if constexpr (kNodesAreShared) {
    return node.shared_from_this();
  } else {
    return Pointer::reclaim_copy(&node);
  }
}

// Says whether operations of the calling thread run in lower precision, and in which type.
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
// Returns `tensor`, or an alias of it without kShardedKey.
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

// Freezing either of two tensors applies to both. `seen` is the state of both at the last call.
// Returns whether it has changed.
inline bool follow_requires_grad(const torch::Tensor& one, const torch::Tensor& other, bool& seen) {
  if (one.requires_grad() == seen && other.requires_grad() == seen) return false;
  seen = !seen;
  one.set_requires_grad(seen);
  other.set_requires_grad(seen);
  return true;
}

// Installs a kernel for all operations that get a tensor with `key`, once per process.
template <auto* kKernel>
void install_fallback(c10::DispatchKey key) {
  // Never destroyed, because models may outlive static objects.
  static torch::Library* const library = [key] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<kKernel>());
    return made;
  }();
  (void)library;
}

// Returns whether an operation returns views of its arguments, and so touches no data. Schemas mark
// results that share memory with an argument.
inline bool makes_views(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& returned) {
    return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
  });
}

// Returns a strided tensor of this size over `data`, which may belong to another owner or be null.
inline torch::Tensor tensor_over(at::DataPtr data, std::size_t storage_bytes, at::IntArrayRef sizes,
                                 const torch::TensorOptions& options) {
  torch::Tensor tensor = torch::empty({0}, options.requires_grad(false));
  // The storage claims its full size, so that LibTorch accepts the sizes, although there may be no
  // memory behind it.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), storage_bytes, std::move(data),
                             tensor.storage().unsafeGetStorageImpl()->allocator(), /*resizable=*/false);
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  tensor.set_(storage, 0, sizes, strides);
  return tensor;
}

// Returns whether the calling thread is running a backward pass.
inline bool in_backward_pass() { return torch::autograd::get_current_graph_task_nodes_in_graph() != nullptr; }

// Calls `work` at the end of the backward pass that the calling thread is running.
inline void at_end_of_backward(std::function<void()> work) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(work));
}

}  // namespace cairn::training
