// Records which tensors are parts of larger ones, and finds the parts in values of state dicts.
#include <memory>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/state/weak_tensor_table.hpp>

namespace cairn {
namespace {

// The mesh and placements behind a box, so that a ShardedTensor can name the chunks of all ranks.
struct MeshLayout {
  DeviceMesh mesh;
  std::vector<Placement> placements;
  int rank;
};
struct DeclaredShard {
  Box box;
  Extents size;
  std::shared_ptr<const MeshLayout> layout;  // may be null
};

// Never destroyed, because tensors may outlive static objects.
WeakTensorTable<DeclaredShard>& declarations() {
  static auto* const instance = new WeakTensorTable<DeclaredShard>;
  return *instance;
}

[[noreturn]] void refuse_declaration(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "declare a shard: " + why);
}

// At the declaration, where the caller can still see the mistake, and not in the next save.
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
  declarations().put(parameter, {box, size, nullptr});
}

void declare_shard(const torch::Tensor& parameter, const Extents& size, const DeviceMesh& mesh,
                   const std::vector<Placement>& placements, int rank) {
  const auto box = local_box(size, mesh, placements, rank);
  if (!box) refuse_declaration("rank " + std::to_string(rank) + " is not in the mesh");
  check_declaration(parameter, *box, size);
  declarations().put(parameter, {*box, size, std::make_shared<const MeshLayout>(MeshLayout{mesh, placements, rank})});
}

Value as_declared(const torch::Tensor& tensor, const torch::Tensor& declared) {
  if (!declared.defined()) return tensor;
  const auto declaration = declarations().find(declared);
  if (!declaration) return tensor;
  const Box& box = declaration->box;
  if (extents_of(tensor.sizes()) != box.sizes) {
    // State of another shape, such as a scalar per parameter, is no part of anything.
    if (tensor.unsafeGetTensorImpl() != declared.unsafeGetTensorImpl()) return tensor;
    throw Error(ErrorCode::kMismatch, "state dict: a tensor was declared to be the part " + to_string(box) +
                                          " of a larger one, but has now the size " + to_string(extents_of(tensor.sizes())) +
                                          "; declare it again when its size changes");
  }
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) return tensor;  // saving it reports why it cannot be saved
  if (const auto& layout = declaration->layout)
    return ShardedTensor::from_local(tensor, declaration->size, layout->mesh, layout->placements, layout->rank);
  return ShardedTensor(declaration->size, *dtype, {{tensor, box.offsets}});
}

std::optional<TensorPart> part_in(const Value& value) {
  if (value.is_tensor() && value.tensor().defined()) {
    const Extents size = extents_of(value.tensor().sizes());
    return TensorPart{value.tensor(), Box::whole(size), size};
  }
  if (!value.is_sharded() || value.sharded().local_shards().size() != 1) return std::nullopt;
  const LocalShard& shard = value.sharded().local_shards().front();
  return TensorPart{shard.tensor, Box{shard.offsets, extents_of(shard.tensor.sizes())}, value.sharded().size()};
}

bool TensorPart::can_replace(const TensorPart& other) const {
  return size == other.size && box == other.box && why_without_memory(tensor).empty();
}

std::string describe_part(const Value& value) {
  const auto part = part_in(value);
  if (!part) return value.type_name();
  const std::string what = part->box == Box::whole(part->size) ? "a tensor" : to_string(part->box) + " of a tensor";
  const std::string fault = why_without_memory(part->tensor);
  return what + " of size " + to_string(part->size) + (fault.empty() ? "" : ", which " + fault);
}

}  // namespace cairn
