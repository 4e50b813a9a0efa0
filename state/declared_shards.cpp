// Which tensors are parts of larger ones.
#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/UndefinedTensorImpl.h>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

using TensorPointer = std::decay_t<decltype(std::declval<torch::Tensor>().getIntrusivePtr())>;
using WeakTensorPointer = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

class Registry {
 public:
  struct Layout {
    DeviceMesh mesh;
    std::vector<Placement> placements;
    int rank;
  };
  struct Declaration {
    // While it is held, no other TensorImpl gets this address: a lookup never finds a dead tensor's declaration.
    WeakTensorPointer tensor;
    Box box;
    Extents size;
    std::shared_ptr<const Layout> layout;  // may be null
  };

  void put(const torch::Tensor& parameter, const Box& box, const Extents& size, std::shared_ptr<const Layout> layout = nullptr) {
    const std::lock_guard lock(mutex_);
    if (declarations_.size() >= sweep_at_) sweep();
    const TensorPointer pointer = parameter.getIntrusivePtr();
    declarations_.insert_or_assign(pointer.get(), Declaration{WeakTensorPointer(pointer), box, size, std::move(layout)});
  }

  std::optional<Declaration> find(const torch::Tensor& parameter) const {
    const std::lock_guard lock(mutex_);
    const auto found = declarations_.find(parameter.unsafeGetTensorImpl());
    if (found == declarations_.end()) return std::nullopt;
    return found->second;
  }

 private:
  static constexpr std::size_t kSweepAtLeast = 256;

  void sweep() {
    for (auto it = declarations_.begin(); it != declarations_.end();) {
      it = it->second.tensor.expired() ? declarations_.erase(it) : std::next(it);
    }
    sweep_at_ = std::max(kSweepAtLeast, 2 * declarations_.size());
  }

  mutable std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Declaration> declarations_;
  std::size_t sweep_at_ = kSweepAtLeast;
};

// Never destroyed: tensors may outlive static objects.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

[[noreturn]] void refuse_declaration(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "declare a shard: " + why);
}

void check_declaration(const torch::Tensor& parameter, const Box& box, const Extents& size) {
  if (!parameter.defined()) refuse_declaration("the tensor is undefined");
  if (!fits(box, size)) refuse_declaration(to_string(box) + " does not lie within the size " + to_string(size));
  if (extents_of(parameter.sizes()) != box.sizes) {
    refuse_declaration("the tensor has the size " + to_string(extents_of(parameter.sizes())) + ", the box " + to_string(box) +
                       " has " + to_string(box.sizes));
  }
}

}  // namespace

void declare_shard(const torch::Tensor& parameter, const Box& box, const Extents& size) {
  check_declaration(parameter, box, size);
  registry().put(parameter, box, size);
}

void declare_shard(const torch::Tensor& parameter, const Extents& size, const DeviceMesh& mesh,
                   const std::vector<Placement>& placements, int rank) {
  const auto box = local_box(size, mesh, placements, rank);
  if (!box) refuse_declaration("rank " + std::to_string(rank) + " is not in the mesh");
  check_declaration(parameter, *box, size);
  registry().put(parameter, *box, size, std::make_shared<const Registry::Layout>(Registry::Layout{mesh, placements, rank}));
}

std::optional<std::pair<Box, Extents>> declared_shard(const torch::Tensor& parameter) {
  if (!parameter.defined()) return std::nullopt;
  const auto found = registry().find(parameter);
  if (!found) return std::nullopt;
  return std::make_pair(found->box, found->size);
}

Value as_declared(const torch::Tensor& tensor, const torch::Tensor& declared) {
  if (!declared.defined()) return tensor;
  const auto declaration = registry().find(declared);
  if (!declaration) return tensor;
  const Box& box = declaration->box;
  if (extents_of(tensor.sizes()) != box.sizes) {
    if (tensor.unsafeGetTensorImpl() != declared.unsafeGetTensorImpl()) return tensor;
    throw Error(ErrorCode::kMismatch, "state dict: a tensor was declared to be the part " + to_string(box) +
                                          " of a larger one, but has now the size " + to_string(extents_of(tensor.sizes())) +
                                          "; declare it again when its size changes");
  }
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) return tensor;  // saving it says why it cannot be
  if (const auto& layout = declaration->layout)
    return ShardedTensor::from_local(tensor, declaration->size, layout->mesh, layout->placements, layout->rank);
  return ShardedTensor(declaration->size, *dtype, {{tensor, box.offsets}});
}

}  // namespace cairn
