#include <cairn/training/distributed_tensor.hpp>

#include <algorithm>
#include <functional>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/adapters.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/training/torch_compat.hpp>

namespace cairn::training {
namespace {

using Placements = std::vector<TensorPlacement>;

[[noreturn]] void refuse_tensor(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, "distributed tensor: " + why); }

const Shard* shard_in(const TensorPlacement& placement) { return std::get_if<Shard>(&placement); }
bool is_partial(const TensorPlacement& placement) { return std::holds_alternative<Partial>(placement); }
bool cuts(const TensorPlacement& placement, std::int64_t dim) { return placement == TensorPlacement(Shard{dim}); }

using TensorMap = std::function<torch::Tensor(const torch::Tensor&)>;

// A function of one tensor that has its own backward function, such as a function that sends
// tensors between ranks.
class Mapped : public torch::autograd::Node {
 public:
  explicit Mapped(TensorMap backward) : backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients[0].defined() || !should_compute_output(0)) return {torch::Tensor()};
    return {backward_(gradients[0])};
  }
  std::string name() const override { return "CairnMapped"; }

 private:
  TensorMap backward_;
};

// Returns `forward(input)`, computed without a graph. `forward` must return a new tensor or `input`
// itself. `backward` maps the gradient of the result to the gradient of the input. If `backward` is
// differentiable, so are the gradients.
torch::Tensor differentiable(const torch::Tensor& input, const TensorMap& forward, TensorMap backward) {
  torch::Tensor result;
  {
    const torch::NoGradGuard no_grad;
    result = forward(input);
  }
  if (!torch::GradMode::is_enabled() || !input.requires_grad()) return result;
  // The history of the result must not replace that of the input.
  if (result.is_same(input)) result = input.detach();
  const auto node = make_node<Mapped>(std::move(backward));
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(result, node);
  return result;
}

// Negative dimensions are resolved here, so that placements can be compared.
Placements checked(Placements placements, const Extents& size, const ProcessMesh& mesh) {
  if (placements.size() != mesh.axes()) {
    refuse_tensor(std::to_string(placements.size()) + " placements are given for a mesh with " + std::to_string(mesh.axes()) +
                  " axes; give one for each axis");
  }
  const auto dims = static_cast<std::int64_t>(size.size());
  for (TensorPlacement& placement : placements) {
    auto* const shard = std::get_if<Shard>(&placement);
    if (shard == nullptr) continue;
    if (shard->dim < -dims || shard->dim >= dims)
      refuse_tensor(to_string(placement) + " is out of range for a tensor of size " + to_string(size));
    if (shard->dim < 0) shard->dim += dims;
  }
  return placements;
}

// Returns the placements as `state` knows them; the addends of a Partial tensor have the size of
// the sum.
std::vector<Placement> stored(const Placements& placements) {
  std::vector<Placement> result;
  for (const auto& placement : placements) {
    const Shard* const shard = shard_in(placement);
    result.push_back(shard != nullptr ? Placement(*shard) : Placement(Replicate{}));
  }
  return result;
}

// The sum has the same gradient for each addend, so every rank has the gradient of the whole.
Placements of_gradient(Placements placements) {
  for (auto& placement : placements) {
    if (is_partial(placement)) placement = Replicate{};
  }
  return placements;
}

Box box_of(const Extents& size, const ProcessMesh& mesh, const Placements& placements) {
  return *local_box(size, mesh.mesh(), stored(placements), mesh.world().world_rank());
}

// --- along one axis ------------------------------------------------------------------------------

// As torch.chunk cuts: the last ranks may get less, or nothing.
std::int64_t chunk_of(std::int64_t length, int ranks) { return (length + ranks - 1) / ranks; }

// Returns a contiguous copy with `dim` first, padded with zeros to `rows`.
torch::Tensor rows_first(const torch::Tensor& tensor, std::int64_t dim, std::int64_t rows) {
  const torch::Tensor moved = tensor.movedim(dim, 0);
  if (moved.size(0) == rows) return moved.contiguous();
  auto sizes = moved.sizes().vec();
  sizes[0] = rows;
  // Collectives take parts of equal size from all ranks.
  torch::Tensor filled = torch::zeros(sizes, moved.options());
  filled.narrow(0, 0, moved.size(0)).copy_(moved);
  return filled;
}

torch::Tensor rows_back(const torch::Tensor& rows, std::int64_t dim, std::int64_t count) {
  return rows.narrow(0, 0, count).movedim(0, dim).clone(at::MemoryFormat::Contiguous);
}

std::int64_t begin_of(const ProcessGroup& group, std::int64_t length) {
  return std::min(length, chunk_of(length, group.size()) * group.rank());
}
std::int64_t count_of(const ProcessGroup& group, std::int64_t length) {
  return std::min(chunk_of(length, group.size()), length - begin_of(group, length));
}

torch::Tensor cut(const torch::Tensor& whole, const ProcessGroup& group, std::int64_t dim) {
  const std::int64_t length = whole.size(dim);
  return whole.narrow(dim, begin_of(group, length), count_of(group, length)).clone(at::MemoryFormat::Contiguous);
}

// `length` is the size of the dimension before this axis cuts it.
torch::Tensor gather(const torch::Tensor& part, const ProcessGroup& group, std::int64_t dim, std::int64_t length) {
  const torch::Tensor own = rows_first(part, dim, chunk_of(length, group.size()));
  auto sizes = own.sizes().vec();
  sizes[0] *= group.size();
  const torch::Tensor all = torch::empty(sizes, own.options());
  group.all_gather(all, own);
  return rows_back(all, dim, length);
}

torch::Tensor sum(const torch::Tensor& addend, const ProcessGroup& group) {
  // A copy, because all_reduce works in place.
  torch::Tensor total = addend.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(total);
  return total;
}

torch::Tensor sum_and_cut(const torch::Tensor& addend, const ProcessGroup& group, std::int64_t dim) {
  const std::int64_t length = addend.size(dim), chunk = chunk_of(length, group.size());
  const torch::Tensor rows = rows_first(addend, dim, chunk * group.size());
  auto sizes = rows.sizes().vec();
  sizes[0] = chunk;
  const torch::Tensor own = torch::empty(sizes, rows.options());
  // One collective instead of a sum of the whole and a cut, which would move more data.
  group.reduce_scatter(own, rows);
  return rows_back(own, dim, count_of(group, length));
}

// --- along all of them ---------------------------------------------------------------------------

// Returns which axes may stay as they are. A cut depends on the earlier axes that cut the same
// dimension.
std::vector<bool> unchanged(const Placements& from, const Placements& to) {
  std::vector<bool> stays(from.size());
  for (std::size_t axis = 0; axis < from.size(); ++axis) {
    stays[axis] = from[axis] == to[axis];
    const Shard* const shard = shard_in(from[axis]);
    for (std::size_t before = 0; shard != nullptr && before < axis; ++before) {
      if (cuts(from[before], shard->dim) || cuts(to[before], shard->dim)) stays[axis] = stays[axis] && stays[before];
    }
  }
  return stays;
}

// Undoes the cuts that change from the last axis to the first. Then makes the new cuts from the
// first to the last.
torch::Tensor moved(torch::Tensor local, const Extents& size, const ProcessMesh& mesh, const Placements& from,
                    const Placements& to) {
  const std::vector<bool> stays = unchanged(from, to);
  Placements now = from;
  for (std::size_t axis = from.size(); axis-- > 0;) {
    if (stays[axis]) continue;
    if (const Shard* const shard = shard_in(from[axis])) {
      now[axis] = Replicate{};
      const auto dim = static_cast<std::size_t>(shard->dim);
      local = gather(local, mesh.axis(axis), shard->dim, box_of(size, mesh, now).sizes[dim]);
    } else if (is_partial(from[axis]) && shard_in(to[axis]) == nullptr) {
      now[axis] = Replicate{};
      local = sum(local, mesh.axis(axis));
    }
  }
  for (std::size_t axis = 0; axis < to.size(); ++axis) {
    if (now[axis] == to[axis]) continue;
    const ProcessGroup& group = mesh.axis(axis);
    if (const Shard* const shard = shard_in(to[axis])) {
      local = is_partial(now[axis]) ? sum_and_cut(local, group, shard->dim) : cut(local, group, shard->dim);
    } else if (group.rank() != 0) {  // becomes Partial: only the first rank keeps the values
      local = torch::zeros_like(local);
    }
    now[axis] = to[axis];
  }
  return local;
}

torch::Tensor moved_with_gradient(const torch::Tensor& local, const Extents& size, const ProcessMesh& mesh, const Placements& from,
                                  const Placements& to) {
  return differentiable(
      local, [&](const torch::Tensor& tensor) { return moved(tensor, size, mesh, from, to); },
      [size, mesh, from = of_gradient(from), to = of_gradient(to)](const torch::Tensor& gradient) {
        // Differentiable itself, for gradients of gradients.
        return moved_with_gradient(gradient, size, mesh, to, from);
      });
}

void check_stored(const Placements& placements) {
  if (std::any_of(placements.begin(), placements.end(), is_partial)) {
    throw Error(ErrorCode::kUnsupported,
                "distributed tensor: what is the sum of parts cannot be saved; redistribute it to Shard or Replicate first");
  }
}

}  // namespace

std::string to_string(const TensorPlacement& placement) {
  if (is_partial(placement)) return "Partial()";
  const Shard* const shard = shard_in(placement);
  return cairn::to_string(shard != nullptr ? Placement(*shard) : Placement(Replicate{}));
}

DistributedTensor DistributedTensor::from_local(torch::Tensor local, const Extents& size, const ProcessMesh& mesh,
                                                std::vector<TensorPlacement> placements) {
  if (!local.defined()) refuse_tensor("the local tensor is undefined");
  placements = checked(std::move(placements), size, mesh);
  const Box box = box_of(size, mesh, placements);
  if (extents_of(local.sizes()) != box.sizes) {
    refuse_tensor("rank " + std::to_string(mesh.world().world_rank()) + " holds " + cairn::to_string(box) +
                  " of a tensor of size " + cairn::to_string(size) + ", but its part has the size " +
                  cairn::to_string(extents_of(local.sizes())));
  }
  return DistributedTensor(std::move(local), size, mesh, std::move(placements));
}

DistributedTensor DistributedTensor::distribute(const torch::Tensor& whole, const ProcessMesh& mesh,
                                                std::vector<TensorPlacement> placements) {
  if (!whole.defined()) refuse_tensor("the tensor to distribute is undefined");
  const torch::NoGradGuard no_grad;
  const Extents size = extents_of(whole.sizes());
  placements = checked(std::move(placements), size, mesh);
  const torch::Tensor sent = whole.detach().clone(at::MemoryFormat::Contiguous);
  // The first rank's values count, so that parts of all ranks fit together even if their tensors
  // differ.
  mesh.world().broadcast(sent, 0);
  torch::Tensor local = moved(sent, size, mesh, Placements(mesh.axes(), Replicate{}), placements);
  return DistributedTensor(std::move(local), size, mesh, std::move(placements));
}

Box DistributedTensor::box() const { return box_of(size_, mesh_, placements_); }

DistributedTensor DistributedTensor::redistribute(std::vector<TensorPlacement> placements) const {
  placements = checked(std::move(placements), size_, mesh_);
  if (placements == placements_) return *this;
  torch::Tensor local = moved_with_gradient(local_, size_, mesh_, placements_, placements);
  return DistributedTensor(std::move(local), size_, mesh_, std::move(placements));
}

torch::Tensor DistributedTensor::full_tensor() const { return redistribute(Placements(mesh_.axes(), Replicate{})).local(); }

torch::Tensor DistributedTensor::to_local(std::vector<TensorPlacement> gradient) const {
  gradient = checked(std::move(gradient), size_, mesh_);
  const Placements own = of_gradient(placements_);
  if (gradient == own) return local_;
  return differentiable(
      local_, [](const torch::Tensor& tensor) { return tensor; },
      [size = size_, mesh = mesh_, gradient, own](const torch::Tensor& tensor) {
        return moved_with_gradient(tensor, size, mesh, gradient, own);
      });
}

ShardedTensor DistributedTensor::sharded() const {
  check_stored(placements_);
  return ShardedTensor::from_local(local_, size_, mesh_.root().mesh(), mesh_.on_root(stored(placements_)),
                                   mesh_.world().world_rank());
}

void DistributedTensor::declare() const {
  check_stored(placements_);
  declare_shard(local_, size_, mesh_.root().mesh(), mesh_.on_root(stored(placements_)), mesh_.world().world_rank());
}

}  // namespace cairn::training
