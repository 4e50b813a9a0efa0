#include <cairn/training/gather_on_use.hpp>

#include <algorithm>
#include <vector>

#include <torch/library.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/training/sharded_unit.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

// The context of a DataPtr.
struct Holder {
  std::shared_ptr<const MemoryOwner> owner;
  torch::Tensor memory;                // full tensors: what is behind the storage just now
  at::DataPtr data;                    // shards: their own memory
  std::shared_ptr<ShardedUnit> keeps;  // shards: the unit lives as long as one of them
};

void delete_holder(void* holder) { delete static_cast<Holder*>(holder); }

Holder* holder_in(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &delete_holder ? static_cast<Holder*>(data.get_context()) : nullptr;
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error(ErrorCode::kPrecondition, "the sharded parameter \"" + name + "\" " + why);
}

std::shared_ptr<ShardedUnit> unit_of(const MemoryOwner& owner) {
  auto unit = owner.unit.lock();
  if (!unit) {
    refuse(owner.name,
           "has lost its shards: they were moved, cast or replaced. Move and cast the module before fully_shard, and do not "
           "register its parameters anew after it");
  }
  return unit;
}

// The units whose parameters an operation reads, each once.
using Units = std::vector<std::shared_ptr<ShardedUnit>>;

void note(const torch::Tensor& tensor, bool written, bool reads, const c10::FunctionSchema& schema, Units& units) {
  if (!tensor.defined() || !tensor.key_set().has(kShardedKey)) return;
  const Holder* const holder = holder_in(tensor);
  if (holder == nullptr) return;
  const MemoryOwner& owner = *holder->owner;
  if (owner.role == MemoryOwner::Role::kGradient && (reads || written)) {
    refuse(owner.name, "has no gradient of its own (" + schema.name() +
                           " asked for it): gradients are those of the shards in the "
                           "module's parameters(); make the optimizer after fully_shard, from those");
  }
  if (written) {
    refuse(owner.name, "cannot be changed (by " + schema.name() +
                           "): the model computes with a gathered copy. Change the shard in "
                           "the module's parameters(), or make the optimizer after fully_shard");
  }
  if (!reads) return;
  auto unit = unit_of(owner);
  for (const auto& known : units) {
    if (known == unit) return;
  }
  units.push_back(std::move(unit));
}

// Keeps units gathered for one operation.
class Uses {
 public:
  explicit Uses(const Units& units) : units_(units) {
    for (const auto& unit : units_) unit->pin();
    try {
      for (const auto& unit : units_) unit->use();
    } catch (...) {
      release();
      throw;
    }
  }
  ~Uses() { release(); }
  Uses(const Uses&) = delete;
  Uses& operator=(const Uses&) = delete;

 private:
  void release() {
    for (const auto& unit : units_) unit->unpin();
  }
  const Units& units_;
};

void gather_on_use(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const bool reads = !makes_views(schema);
  Units units;
  const auto& arguments = schema.arguments();
  const std::size_t first = stack->size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (value.isTensor()) {
      note(value.toTensor(), written, reads, schema, units);
    } else if (value.isTensorList()) {
      for (const torch::Tensor& tensor : value.toTensorVector()) note(tensor, written, reads, schema, units);
    } else if (value.isList()) {  // of optional tensors
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) note(item.toTensor(), written, reads, schema, units);
      }
    }
  }
  const Uses uses(units);
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kShardedKey), stack);
}

at::DataPtr data_with(std::unique_ptr<Holder> holder, void* data, at::Device device) {
  return at::DataPtr(data, holder.release(), &delete_holder, device);
}

c10::StorageImpl* storage_of(const torch::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

void install_gather_on_use() {
  // Never taken back: models may outlive static objects.
  static torch::Library* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kShardedKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&gather_on_use>());
    return made;
  }();
  (void)library;
}

bool makes_views(const c10::FunctionSchema& schema) {
  const auto is_view = [](const c10::Argument& returned) {
    return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
  };
  return std::any_of(schema.returns().begin(), schema.returns().end(), is_view);
}

torch::Tensor tensor_over(at::DataPtr data, std::size_t storage_bytes, at::IntArrayRef sizes, const torch::TensorOptions& options) {
  torch::Tensor tensor = torch::empty({0}, options.requires_grad(false));
  const c10::Storage storage(c10::Storage::use_byte_size_t(), storage_bytes, std::move(data), storage_of(tensor)->allocator(),
                             /*resizable=*/false);
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  tensor.set_(storage, 0, sizes, strides);
  return tensor;
}

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
  storage_of(tensor)->set_data_ptr_noswap(data_with(std::move(holder), data, tensor.device()));
}

void own_shard(const torch::Tensor& shard, MemoryOwner owner, std::shared_ptr<ShardedUnit> keeps) {
  auto holder = std::make_unique<Holder>();
  holder->owner = std::make_shared<const MemoryOwner>(std::move(owner));
  holder->keeps = std::move(keeps);
  c10::StorageImpl* const storage = storage_of(shard);
  void* const data = storage->data_ptr().get();
  Holder* const raw = holder.get();
  raw->data = storage->set_data_ptr(data_with(std::move(holder), data, shard.device()));
}

const MemoryOwner* memory_owner(const torch::Tensor& tensor) {
  const Holder* const holder = holder_in(tensor);
  return holder == nullptr ? nullptr : holder->owner.get();
}

}  // namespace cairn::training
