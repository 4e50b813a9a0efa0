#include <cairn/training/parallel_parameter.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/state/weak_tensor_table.hpp>
#include <cairn/training/distributed_tensor.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

// The context of a handle's DataPtr.
struct ParallelHandle {
  std::shared_ptr<const ParallelParameter> parameter;
  bool is_gradient;  // a placeholder for the gradient; the part has the real one
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> whole;
  mutable bool required_grad;  // as last seen on both tensors
};

void delete_handle(void* handle) { delete static_cast<ParallelHandle*>(handle); }

const ParallelHandle* handle_in(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kParallelKey) || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &delete_handle ? static_cast<const ParallelHandle*>(data.get_context()) : nullptr;
}

torch::Tensor handle_tensor(const torch::Tensor& like, std::unique_ptr<ParallelHandle> handle) {
  // A handle has the size of the whole parameter and no memory. Layers see the sizes that they
  // expect.
  at::DataPtr data(nullptr, handle.release(), &delete_handle, like.device());
  return tensor_over(std::move(data), like.nbytes(), like.sizes(), like.options());
}

WeakTensorTable<std::weak_ptr<const ParallelParameter>>& parameters_by_part() {
  // Never destroyed, because tensors may outlive static objects.
  static auto* const table = new WeakTensorTable<std::weak_ptr<const ParallelParameter>>;
  return *table;
}

// --- the kernel ----------------------------------------------------------------------------------

[[noreturn]] void refuse_operation(const ParallelHandle& handle, const c10::FunctionSchema& schema) {
  const std::string name = "the parallel parameter \"" + handle.parameter->name + "\" ";
  if (handle.is_gradient) {
    throw Error(ErrorCode::kPrecondition,
                name + "has no gradient of its own (" + schema.name() +
                    " asked for it): gradients are those of the parts in the module's parameters(); make the "
                    "optimizer after parallelize, from those");
  }
  throw Error(ErrorCode::kUnsupported,
              name + "cannot be used by " + schema.name() +
                  ": this rank has a part of it only. Its layer's own products and look-ups are known; change the part in "
                  "the module's parameters(), read the whole by full_tensor of that");
}

// Returns nothing for other tensors. Throws for a view that no rule covers.
std::optional<ParallelArgument> argument_of(const torch::Tensor& tensor, const c10::FunctionSchema& schema) {
  const ParallelHandle* const handle = handle_in(tensor);
  if (handle == nullptr) return std::nullopt;
  // Weak, because the whole tensor owns the handle: a strong reference would be a cycle.
  const auto pointer = handle->whole.lock();
  if (handle->is_gradient || !pointer) refuse_operation(*handle, schema);
  const torch::Tensor whole(pointer);
  follow_requires_grad(whole, handle->parameter->part, handle->required_grad);
  ParallelArgument argument{handle->parameter};
  argument.detached = whole.requires_grad() && !tensor.requires_grad();
  // The parameter itself and its transpose are the only views that the rules below understand.
  // Strides tell them apart.
  if (tensor.storage_offset() != 0) refuse_operation(*handle, schema);
  if (tensor.sizes() == whole.sizes() && tensor.strides() == whole.strides()) return argument;
  argument.transposed = true;
  const bool fits = tensor.dim() == 2 && whole.dim() == 2 && tensor.size(0) == whole.size(1) && tensor.size(1) == whole.size(0) &&
                    tensor.stride(0) == whole.stride(1) && tensor.stride(1) == whole.stride(0);
  if (!fits) refuse_operation(*handle, schema);
  return argument;
}

using Arguments = torch::jit::Stack;

bool is_matrix(const std::optional<ParallelArgument>& argument) { return argument && argument->parameter->size.size() == 2; }
bool is_vector(const std::optional<ParallelArgument>& argument) { return argument && argument->parameter->size.size() == 1; }

// Returns the result of a supported operation; undefined for others. `parallel[i]` describes
// argument i if it is a parallel parameter.
torch::Tensor computed(const std::string& name, const Arguments& arguments,
                       const std::vector<std::optional<ParallelArgument>>& parallel) {
  const auto alone = [&](std::size_t only) {
    for (std::size_t i = 0; i < parallel.size(); ++i) {
      if (i != only && parallel[i]) return false;
    }
    return true;
  };
  if ((name == "aten::matmul" || name == "aten::mm") && is_matrix(parallel[1]) && alone(1))
    return parallel_product(arguments[0].toTensor(), *parallel[1]);
  if (name == "aten::addmm" && is_matrix(parallel[2]) && !parallel[1] && (!parallel[0] || is_vector(parallel[0]))) {
    return parallel_affine(arguments[0].toTensor(), parallel[0] ? &*parallel[0] : nullptr, arguments[1].toTensor(), *parallel[2],
                           arguments[3].toScalar(), arguments[4].toScalar());
  }
  if (name == "aten::embedding" && is_matrix(parallel[0]) && !parallel[0]->transposed && alone(0) && !arguments[3].toBool() &&
      !arguments[4].toBool())
    return parallel_embedding(*parallel[0], arguments[1].toTensor(), arguments[2].toInt());
  if (name == "aten::linear" && is_matrix(parallel[1]) && !parallel[0] && (!parallel[2] || is_vector(parallel[2]))) {
    ParallelArgument transposed = *parallel[1];
    transposed.transposed = !transposed.transposed;
    const torch::Tensor product = parallel_product(arguments[0].toTensor(), transposed);
    if (parallel[2]) return product + parallel_bias(product, *parallel[2]);
    const bool has_bias = arguments[2].isTensor() && arguments[2].toTensor().defined();
    return has_bias ? product + arguments[2].toTensor() : product;
  }
  return {};
}

// The fallback for all operations that get a handle. A few are computed in parts; views pass
// through; all others are refused, because they would read memory that is not there.
void compute_in_parts(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const std::size_t count = schema.arguments().size(), first = stack->size() - count;
  const Arguments arguments(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  std::vector<std::optional<ParallelArgument>> parallel(count);
  const ParallelHandle* handle = nullptr;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && handle == nullptr) handle = handle_in(argument.toTensor());
    if (!argument.isTensorList()) continue;
    for (const torch::Tensor& tensor : argument.toTensorVector()) handle = handle == nullptr ? handle_in(tensor) : handle;
  }
  if (makes_views(schema) || handle == nullptr) {
    operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kParallelKey), stack);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (arguments[i].isTensor()) parallel[i] = argument_of(arguments[i].toTensor(), schema);
  }
  // Layers add the bias after the product for inputs of more than two dimensions.
  const bool adds = (schema.name() == "aten::add_" || schema.name() == "aten::add") && schema.overload_name() == "Tensor";
  if (adds && !parallel[0] && is_vector(parallel[1])) {
    (*stack)[first + 1] = parallel_bias(arguments[0].toTensor(), *parallel[1]);
    // Calls the operation anew instead of redispatching: the other argument has changed.
    operation.callBoxed(stack);
    return;
  }
  torch::Tensor result;
  if (schema.overload_name().empty()) result = computed(schema.name(), arguments, parallel);
  if (!result.defined()) refuse_operation(*handle, schema);
  torch::jit::drop(*stack, count);
  torch::jit::push(*stack, std::move(result));
}

}  // namespace

void make_parallel(const torch::Tensor& whole, std::shared_ptr<const ParallelParameter> parameter) {
  install_fallback<&compute_in_parts>(kParallelKey);
  const torch::NoGradGuard no_grad;
  const auto handle = [&](bool is_gradient) {
    return std::make_unique<ParallelHandle>(
        ParallelHandle{parameter, is_gradient, decltype(ParallelHandle::whole)(whole.getIntrusivePtr()), whole.requires_grad()});
  };
  parameters_by_part().put(parameter->part, parameter);
  torch::Tensor held = whole;
  held.mutable_grad() = torch::Tensor();
  // Keeps the tensor's identity, because the module's members refer to it.
  held.set_data(handle_tensor(whole, handle(false)));
  mark_with(held, kParallelKey);
  if (!held.requires_grad()) return;
  torch::Tensor& gradient = held.mutable_grad();
  gradient = handle_tensor(whole, handle(true));
  mark_with(gradient, kParallelKey);
}

std::shared_ptr<const ParallelParameter> parallel_parameter_of(const torch::Tensor& part) {
  if (!part.defined()) return nullptr;
  const auto found = parameters_by_part().find(part);
  return found ? found->lock() : nullptr;
}

bool is_parallel_handle(const torch::Tensor& tensor) { return handle_in(tensor) != nullptr; }

// --- declaring -----------------------------------------------------------------------------------

namespace {

// Declares a shard that `placements` on `mesh` cut from a part that `parallel` cut. Returns false
// unless both meshes are the two axes of one mesh.
bool declare_on_root(const torch::Tensor& shard, const ParallelParameter& parallel, const ProcessMesh& mesh,
                     const std::vector<Placement>& placements) {
  const ProcessMesh& root = parallel.mesh.root();
  if (root.axes() != 2 || mesh.axes() != 1 || !(mesh.root().mesh() == root.mesh()) ||
      mesh.axis_of_root() == parallel.mesh.axis_of_root())
    return false;
  const std::size_t axis = mesh.axis_of_root(), parallel_axis = parallel.mesh.axis_of_root();
  std::vector<Placement> both(2, Replicate{});
  both[axis] = placements.front();
  both[parallel_axis] = Shard{parallel.dim};
  DeviceMesh on = root.mesh();
  // Cuts of one dimension are applied from left to right, and the parallel cut comes first.
  if (both[0] == both[1] && axis < parallel_axis) {
    std::vector<int> ranks;
    for (std::int64_t column = 0; column < on.shape()[1]; ++column) {
      for (std::int64_t row = 0; row < on.shape()[0]; ++row)
        ranks.push_back(on.ranks()[static_cast<std::size_t>(row * on.shape()[1] + column)]);
    }
    std::vector<std::string> names(on.axis_names().rbegin(), on.axis_names().rend());
    on = DeviceMesh({on.shape()[1], on.shape()[0]}, std::move(ranks), std::move(names));
  }
  declare_shard(shard, parallel.size, on, both, mesh.world().world_rank());
  return true;
}

}  // namespace

void declare_what_is_left(const torch::Tensor& shard, const torch::Tensor& cut, const ProcessMesh& mesh,
                          const std::vector<Placement>& placements) {
  const Extents size = extents_of(cut.sizes());
  const int rank = mesh.world().world_rank();
  const auto parallel = parallel_parameter_of(cut);
  const bool cuts =
      std::any_of(placements.begin(), placements.end(), [](const auto& each) { return std::holds_alternative<Shard>(each); });
  if (!parallel) {
    if (cuts) declare_shard(shard, size, mesh.root().mesh(), mesh.on_root(placements), rank);
    return;
  }
  if (!cuts) return DistributedTensor::from_local(shard, parallel->size, parallel->mesh, {Shard{parallel->dim}}).declare();
  if (declare_on_root(shard, *parallel, mesh, placements)) return;
  Box box = *local_box(size, mesh.mesh(), placements, rank);
  const Box outer = *local_box(parallel->size, parallel->mesh.mesh(), {Shard{parallel->dim}}, rank);
  // The shard lies within the part: its place in the whole is the sum of both offsets.
  for (std::size_t dim = 0; dim < box.offsets.size(); ++dim) box.offsets[dim] += outer.offsets[dim];
  declare_shard(shard, box, parallel->size);
}

}  // namespace cairn::training
