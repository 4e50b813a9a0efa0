#include <cairn/state/sharded_tensor.hpp>

#include <algorithm>
#include <set>

#include <cairn/base/error.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/state/tensor_memory.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, "sharded tensor: " + why); }

// Returns one chunk per placement, in order.
std::vector<Box> spec_chunks(const ChunkShardingSpec& spec, const Extents& size) {
  const auto dims = static_cast<std::int64_t>(size.size());
  if (spec.placements.empty()) refuse("the spec has no placements; name at least one rank");
  for (const int rank : spec.placements) {
    if (rank < 0) refuse("the spec places a chunk on the negative rank " + std::to_string(rank));
  }
  if (spec.dim < -dims || spec.dim >= dims) {
    refuse("dim " + std::to_string(spec.dim) + " of the spec is out of range for a tensor of size " + to_string(size));
  }
  volume(size);  // throws if a size is negative
  const auto dim = static_cast<std::size_t>(spec.dim < 0 ? spec.dim + dims : spec.dim);
  const auto parts = static_cast<std::int64_t>(spec.placements.size());
  const std::int64_t chunk = size[dim] / parts + (size[dim] % parts != 0 ? 1 : 0);
  std::vector<Box> boxes;
  for (std::int64_t part = 0; part < parts; ++part) {
    Box box = Box::whole(size);
    box.offsets[dim] = std::min(size[dim], chunk * part);
    box.sizes[dim] = std::min(chunk, size[dim] - box.offsets[dim]);
    boxes.push_back(box);
  }
  return boxes;
}

// Returns each replicated chunk once, and no empty chunks. A tensor without elements is one chunk.
std::vector<Box> distinct(const std::vector<Box>& chunks, const Extents& size) {
  if (volume(size) == 0) return {Box::whole(size)};
  std::vector<Box> kept;
  std::set<Box> seen;
  for (const Box& chunk : chunks) {
    if (!chunk.empty() && seen.insert(chunk).second) kept.push_back(chunk);
  }
  return kept;
}

// Checked here and not in the save, so that the caller can still see which tensor it was. Parts may
// have no memory until they are used: saves and loads check the memory, and know the key.
DType storable_dtype(const torch::Tensor& tensor) {
  const std::string reason = why_not_dense(tensor);
  if (!reason.empty())
    throw Error(ErrorCode::kUnsupported, "sharded tensor: a part " + reason + "; only dense tensors can be parts");
  return *dtype_of(tensor.scalar_type());
}

torch::Tensor copy_of_part(const torch::Tensor& whole, const Box& box) {
  if (const std::string reason = why_without_memory(whole); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "sharded tensor: the tensor to distribute " + reason);
  return with_torch("copy the part " + to_string(box) + " of a tensor",
                    // A copy, because a view would keep the whole tensor in memory.
                    [&] { return part_of(whole, box.offsets, box.sizes).clone(at::MemoryFormat::Contiguous); });
}

}  // namespace

// Checks only what one rank can see. Planning checks that the parts of all ranks make up the
// tensor.
ShardedTensor::ShardedTensor(Extents size, DType dtype, std::vector<LocalShard> local_shards)
    : ShardedTensor(std::move(size), dtype, std::move(local_shards), Layout()) {}

ShardedTensor::ShardedTensor(Extents size, DType dtype, std::vector<LocalShard> local_shards, Layout layout)
    : size_(std::move(size)),
      dtype_(dtype),
      local_shards_(std::move(local_shards)),
      layout_(std::make_shared<Layout>(std::move(layout))) {
  volume(size_);  // throws if a size is negative
  std::vector<Box> boxes;
  for (const LocalShard& shard : local_shards_) {
    const DType found = storable_dtype(shard.tensor);
    if (found != dtype_) refuse(std::string("a part has the type ") + to_string(found) + ", the whole " + to_string(dtype_));
    Box box{shard.offsets, extents_of(shard.tensor.sizes())};
    if (!fits(box, size_)) {
      refuse("a part of size " + to_string(box.sizes) + " at " + to_string(box.offsets) + " does not lie within the size " +
             to_string(size_));
    }
    boxes.push_back(std::move(box));
  }
  // Parts of other ranks may fill the gaps: only overlaps of local parts are certain faults.
  if (boxes.size() < 2) return;
  for (const CoverageFault& fault : check_coverage("local shards", size_, boxes)) {
    if (fault.kind == CoverageFault::Kind::kOverlap)
      refuse("two local parts overlap: " + to_string(fault.first) + " and " + to_string(fault.second));
  }
}

ShardedTensor ShardedTensor::zeros(const ChunkShardingSpec& spec, const Extents& size, int rank,
                                   const torch::TensorOptions& options) {
  const std::vector<Box> chunks = spec_chunks(spec, size);
  const auto dtype = dtype_of(c10::typeMetaToScalarType(options.dtype()));
  if (!dtype)
    throw Error(ErrorCode::kUnsupported, "sharded tensor: the type " + std::string(options.dtype().name()) + " cannot be saved");
  std::vector<LocalShard> shards;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (spec.placements[i] != rank) continue;
    shards.push_back({with_torch("allocate a part of size " + to_string(chunks[i].sizes),
                                 [&] { return torch::zeros(array_of(chunks[i].sizes), options); }),
                      chunks[i].offsets});
  }
  return {size, *dtype, std::move(shards), Layout{spec, std::nullopt, {}}};
}

ShardedTensor ShardedTensor::distribute(const torch::Tensor& whole, const ChunkShardingSpec& spec, int rank) {
  const DType dtype = storable_dtype(whole);
  const Extents size = extents_of(whole.sizes());
  const std::vector<Box> chunks = spec_chunks(spec, size);
  std::vector<LocalShard> shards;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (spec.placements[i] == rank) shards.push_back({copy_of_part(whole, chunks[i]), chunks[i].offsets});
  }
  return {size, dtype, std::move(shards), Layout{spec, std::nullopt, {}}};
}

ShardedTensor ShardedTensor::distribute(const torch::Tensor& whole, const DeviceMesh& mesh,
                                        const std::vector<Placement>& placements, int rank) {
  const DType dtype = storable_dtype(whole);
  const Extents size = extents_of(whole.sizes());
  std::vector<LocalShard> shards;
  if (const auto box = local_box(size, mesh, placements, rank)) shards.push_back({copy_of_part(whole, *box), box->offsets});
  return {size, dtype, std::move(shards), Layout{std::nullopt, mesh, placements}};
}

// A rank outside of the mesh takes part as well, because every rank describes the same state dict.
ShardedTensor ShardedTensor::from_local(torch::Tensor local, const Extents& size, const DeviceMesh& mesh,
                                        const std::vector<Placement>& placements, int rank) {
  const DType dtype = storable_dtype(local);
  const auto box = local_box(size, mesh, placements, rank);
  std::vector<LocalShard> shards;
  if (box) {
    if (extents_of(local.sizes()) != box->sizes) {
      refuse("rank " + std::to_string(rank) + " holds " + to_string(*box) + " of a tensor of size " + to_string(size) +
             ", but its part has the size " + to_string(extents_of(local.sizes())));
    }
    shards.push_back({std::move(local), box->offsets});
  } else if (local.numel() != 0) {
    refuse("rank " + std::to_string(rank) + " is not in the mesh, but has a part of size " + to_string(extents_of(local.sizes())) +
           "; pass an empty tensor there");
  }
  return {size, dtype, std::move(shards), Layout{std::nullopt, mesh, placements}};
}

// Computed on request, because a mesh may have thousands of ranks and most callers need only their
// own part.
std::optional<std::vector<Box>> ShardedTensor::all_chunks() const {
  if (layout_->spec) return distinct(spec_chunks(*layout_->spec, size_), size_);
  if (!layout_->mesh) return std::nullopt;
  std::vector<Box> chunks;
  for (const int rank : layout_->mesh->ranks()) chunks.push_back(*local_box(size_, *layout_->mesh, layout_->placements, rank));
  return distinct(chunks, size_);
}

bool ShardedTensor::may_have_replicas(int world_size) const {
  const std::size_t ranks = layout_->mesh ? layout_->mesh->ranks().size() : layout_->spec ? layout_->spec->placements.size() : 0;
  // The ranks that are not there may have the same parts, on a mesh of their own.
  if (ranks == 0 || static_cast<int>(ranks) != world_size) return true;
  if (!layout_->mesh) return false;
  const auto& shape = layout_->mesh->shape();
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] > 1 && std::holds_alternative<Replicate>(layout_->placements[axis])) return true;
  return false;
}

ShardedTensor ShardedTensor::with_local_tensors(std::vector<torch::Tensor> tensors) const {
  if (tensors.size() != local_shards_.size())
    refuse(std::to_string(tensors.size()) + " tensors were given for " + std::to_string(local_shards_.size()) + " parts");
  // Keeps the layout, which the new memory does not change.
  ShardedTensor made = *this;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    torch::Tensor& part = made.local_shards_[i].tensor;
    if (tensors[i].sizes() != part.sizes() || storable_dtype(tensors[i]) != dtype_)
      refuse("the tensor for part " + std::to_string(i) + " has another size or type than the part");
    part = std::move(tensors[i]);
  }
  return made;
}

}  // namespace cairn
