// Gathers a sharded parameter when an operation uses it.
//
// LibTorch's modules have no hooks, but every operation on a tensor goes through its dispatcher.
// The model's parameter remains the same full-size tensor object and carries a dispatch key,
// kShardedKey. Views inherit the key, including those that autograd saves for backward. The kernel
// for that key runs before those of LibTorch: it asks the unit that owns the memory to gather the
// parameter, and then redispatches the operation. The kernel gathers nothing for operations that
// only make views, since they touch no data.
//
// The shards of parameters that are cut over ranks carry the key as well, and so do their gradients
// and the elementwise results of either. Other operations on them, such as reductions, would return
// a different number on each rank, so the kernel refuses them. `local_tensor` returns a tensor
// without the key.
//
// Cairn recognises memory by its owner: the context of the storage's DataPtr names the unit and the
// parameter. Between uses, the storage keeps its size but has no memory.
#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/core/DimVector.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

// The context of a DataPtr.
struct Holder {
  std::shared_ptr<const MemoryOwner> owner;
  torch::Tensor memory;                // full tensors: the memory behind the storage at present
  at::DataPtr data;                    // shards: their own memory
  std::shared_ptr<ShardedUnit> keeps;  // shards: keeps the unit alive
};

// The address of this function tells Cairn's storages from all others.
void delete_holder(void* holder) { delete static_cast<Holder*>(holder); }

Holder* holder_in(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &delete_holder ? static_cast<Holder*>(data.get_context()) : nullptr;
}

[[noreturn]] void refuse_parameter(const std::string& name, const std::string& why) {
  throw Error(ErrorCode::kPrecondition, "the sharded parameter \"" + name + "\" " + why);
}

std::shared_ptr<ShardedUnit> unit_of(const MemoryOwner& owner) {
  auto unit = owner.unit.lock();
  if (!unit) {
    refuse_parameter(
        owner.name,
        "has lost its shards: they were moved, cast or replaced. Move and cast the module before fully_shard, and do not "
        "register its parameters anew after it");
  }
  return unit;
}

using Units = std::vector<std::shared_ptr<ShardedUnit>>;

// The sharded tensors among the arguments of one operation.
struct Given {
  Units units;  // the units whose parameters it reads, each once
  // The sizes of the arguments that are shards, gradients of shards, or computed from either.
  c10::SmallVector<at::DimVector, 2> parts;
  std::shared_ptr<const MemoryOwner> part;  // the first of these that has a name; may be null
  bool in_list = false;                     // some parts are elements of a list
};

void note(const torch::Tensor& tensor, bool written, bool reads, const c10::FunctionSchema& schema, Given& given) {
  if (!tensor.defined() || !tensor.key_set().has(kShardedKey)) return;
  const Holder* const holder = holder_in(tensor);
  if (holder == nullptr || holder->owner->role == MemoryOwner::Role::kShard) {
    given.parts.emplace_back(tensor.sizes());
    if (holder != nullptr && !given.part) given.part = holder->owner;
    return;
  }
  const MemoryOwner& owner = *holder->owner;
  if (owner.role == MemoryOwner::Role::kGradient && (reads || written)) {
    refuse_parameter(owner.name, "has no gradient of its own (" + schema.name() +
                                     " asked for it): gradients are those of the shards in the "
                                     "module's parameters(); make the optimizer after fully_shard, from those");
  }
  if (written) {
    refuse_parameter(owner.name, "cannot be changed (by " + schema.name() +
                                     "): the model computes with a gathered copy. Change the shard in "
                                     "the module's parameters(), or make the optimizer after fully_shard");
  }
  // Views need sizes and strides only. Autograd makes many of them without ever reading.
  if (!reads) return;
  auto unit = unit_of(owner);
  if (std::find(given.units.begin(), given.units.end(), unit) == given.units.end()) given.units.push_back(std::move(unit));
}

[[noreturn]] void refuse_on_parts(const c10::FunctionSchema& schema, const Given& given) {
  throw Error(ErrorCode::kUnsupported,
              schema.name() + " of " +
                  (given.part ? "the sharded parameter \"" + given.part->name + '"' : "a shard or its gradient") +
                  " would use only this rank's part, and return a different result on each rank. Use training::clip_grad_norm "
                  "for gradient norms, full_tensor or full_grad for the whole tensor, local_tensor for this rank's part");
}

bool has_prefix(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }
bool has_suffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// Returns whether one element of the result may depend on several elements of a part, although the
// result has the part's size.
bool mixes_elements(const c10::FunctionSchema& schema) {
  for (const char* const product : {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}) {
    if (schema.name() == product) return true;
  }
  if (schema.returns().empty()) return false;
  const c10::TypeKind kind = schema.returns().front().type()->kind();
  if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return false;
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.name() == "dim" || argument.name() == "dims" || argument.name() == "keepdim";
  });
}

// Returns whether a tensor of size `part` may be an operand of an elementwise operation with a
// result of size `result`.
bool expands_to(at::IntArrayRef part, at::IntArrayRef result) {
  if (part.size() > result.size()) return false;
  const at::IntArrayRef last = result.slice(result.size() - part.size());
  for (std::size_t dim = 0; dim < part.size(); ++dim) {
    if (part[dim] != last[dim] && part[dim] != 1) return false;
  }
  return true;
}

bool has_room_for_parts(const torch::Tensor& tensor, const Given& given) {
  return std::all_of(given.parts.begin(), given.parts.end(),
                     [&](const at::DimVector& part) { return expands_to(part, tensor.sizes()); });
}

struct Unpinned {
  ~Unpinned() {
    for (const auto& unit : units) unit->unpin();
  }
  const Units& units;
};

// Call these before and after an operation on parts. They throw unless the operation is
// elementwise, and mark its results.
void check_before(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, const Given& given) {
  if (mixes_elements(schema)) refuse_on_parts(schema, given);
  const auto& arguments = schema.arguments();
  const std::size_t first = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite() || !stack[first + i].isTensor()) continue;
    const torch::Tensor& written = stack[first + i].toTensor();
    if (!written.defined() || written.numel() == 0 || written.key_set().has(kShardedKey)) continue;
    if (given.in_list || !has_room_for_parts(written, given)) refuse_on_parts(schema, given);
  }
}

void check_after(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, const Given& given) {
  const auto& returns = schema.returns();
  const std::size_t first = stack.size() - returns.size();
  for (std::size_t i = 0; i < returns.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) {
      const torch::Tensor& result = value.toTensor();
      if (!result.defined()) continue;
      if (!has_room_for_parts(result, given)) refuse_on_parts(schema, given);
      if (returns[i].alias_info() == nullptr) mark_as_sharded(result);
    } else if (value.isTensorList()) {
      for (const torch::Tensor& result : value.toTensorVector()) {
        if (result.dim() == 0) refuse_on_parts(schema, given);
        mark_as_sharded(result);
      }
    }
  }
}

// The fallback for all operations: runs whenever an argument has the key of sharded tensors.
void gather_on_use(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const bool reads = !makes_views(schema);
  Given given;
  const auto& arguments = schema.arguments();
  const std::size_t first = stack->size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (value.isTensor()) {
      note(value.toTensor(), written, reads, schema, given);
    } else if (value.isTensorList()) {
      const std::size_t alone = given.parts.size();
      for (const torch::Tensor& tensor : value.toTensorVector()) note(tensor, written, reads, schema, given);
      given.in_list = given.in_list || given.parts.size() > alone;
    } else if (value.isList()) {  // of optional tensors
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) note(item.toTensor(), written, reads, schema, given);
      }
    }
  }
  // Keeps units gathered during the operation. All are pinned first: gathering one frees the
  // others.
  for (const auto& unit : given.units) unit->pin();
  const Unpinned unpinned_at_end{given.units};
  for (const auto& unit : given.units) unit->use();
  // Skips this kernel: the operation now runs on plain memory.
  const c10::DispatchKeySet after = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kShardedKey);
  // Only ATen's operations are checked. Those that make a tensor of a part's size (`_like`, `new_`)
  // read none of its elements.
  const std::string& name = schema.name();
  const bool on_parts =
      !given.parts.empty() && reads && has_prefix(name, "aten::") && !has_suffix(name, "_like") && !has_prefix(name, "aten::new_");
  if (on_parts) check_before(schema, *stack, given);
  // `allclose` consists of several operations that would be refused. Its caller wants to compare
  // this rank's part.
  std::optional<c10::impl::ExcludeDispatchKeyGuard> comparing;
  if (on_parts && name == "aten::allclose") comparing.emplace(kShardedKey);
  operation.redispatchBoxed(after, stack);
  if (on_parts) check_after(schema, *stack, given);
}

at::DataPtr data_with(std::unique_ptr<Holder> holder, void* data, at::Device device) {
  return at::DataPtr(data, holder.release(), &delete_holder, device);
}

c10::StorageImpl* storage_of(const torch::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

void install_gather_on_use() { install_fallback<&gather_on_use>(kShardedKey); }

torch::Tensor tensor_without_memory(at::IntArrayRef sizes, const torch::TensorOptions& options, std::size_t storage_bytes,
                                    MemoryOwner owner) {
  auto holder = std::make_unique<Holder>();
  holder->owner = std::make_shared<const MemoryOwner>(std::move(owner));
  return tensor_over(data_with(std::move(holder), nullptr, options.device()), storage_bytes, sizes, options);
}

void set_memory(const torch::Tensor& tensor, const torch::Tensor& memory) {
  const Holder* const held = holder_in(tensor);
  check_invariant(held != nullptr, "a sharded parameter's storage is another's");
  auto holder = std::make_unique<Holder>();
  holder->owner = held->owner;
  holder->memory = memory;
  void* const data = memory.defined() ? memory.data_ptr() : nullptr;
  // Frees the earlier holder, and with it the earlier memory.
  storage_of(tensor)->set_data_ptr_noswap(data_with(std::move(holder), data, tensor.device()));
}

void own_shard(const torch::Tensor& shard, MemoryOwner owner, std::shared_ptr<ShardedUnit> unit) {
  auto holder = std::make_unique<Holder>();
  holder->owner = std::make_shared<const MemoryOwner>(std::move(owner));
  holder->keeps = std::move(unit);
  c10::StorageImpl* const storage = storage_of(shard);
  void* const data = storage->data_ptr().get();
  Holder* const raw = holder.get();
  // The holder takes over the shard's own memory, and frees it when the storage goes.
  raw->data = storage->set_data_ptr(data_with(std::move(holder), data, shard.device()));
}

const MemoryOwner* memory_owner(const torch::Tensor& tensor) {
  const Holder* const holder = holder_in(tensor);
  return holder == nullptr ? nullptr : holder->owner.get();
}

}  // namespace cairn::training
