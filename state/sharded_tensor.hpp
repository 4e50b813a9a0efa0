// A tensor of which this rank holds only some parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include <cairn/planning/box.hpp>
#include <cairn/planning/device_mesh.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

// Cuts one dimension of n elements into chunks of ceil(n / count), where count is the number of
// placements. Chunk i belongs to rank `placements[i]`. A rank may be listed more than once; a rank
// that is not listed holds nothing. Modelled on PyTorch's ChunkShardingSpec.
struct ChunkShardingSpec {
  std::int64_t dim = 0;         // a negative number counts from the end
  std::vector<int> placements;  // global ranks
};

struct LocalShard {
  torch::Tensor tensor;  // shares the trainer's memory: loading fills it in place
  Extents offsets;       // within the global tensor
};

class ShardedTensor {
 public:
  // Makes a sharded tensor of size `size` from the parts that this rank holds, if any. Throws
  // kInvalidArgument if a shard does not fit, dtypes differ, or two local shards overlap. Throws
  // kUnsupported if a shard cannot be stored (sparse, quantized).
  ShardedTensor(Extents size, DType dtype, std::vector<LocalShard> local_shards);

  // Allocates the local shards of `rank`, zero-filled, on the device of `options`.
  static ShardedTensor zeros(const ChunkShardingSpec& spec, const Extents& size, int rank,
                             const torch::TensorOptions& options = {});
  // Cuts the whole tensor by the spec, and copies this rank's parts.
  static ShardedTensor distribute(const torch::Tensor& whole, const ChunkShardingSpec& spec, int rank);
  // Cuts the whole tensor by the placements on the mesh, and copies this rank's part.
  static ShardedTensor distribute(const torch::Tensor& whole, const DeviceMesh& mesh, const std::vector<Placement>& placements,
                                  int rank);
  // Wraps `local`, this rank's part; the result shares its memory. Throws kInvalidArgument if the
  // size of `local` differs from that of the rank's box (local_box in device_mesh.hpp). On a rank
  // outside the mesh, `local` must be empty and only supplies the dtype.
  static ShardedTensor from_local(torch::Tensor local, const Extents& size, const DeviceMesh& mesh,
                                  const std::vector<Placement>& placements, int rank);

  // Returns the same sharded tensor with different memory: `tensors[i]` replaces the tensor of
  // local shard i. Throws kInvalidArgument if `tensors` does not match the local shards in number,
  // sizes and dtypes.
  ShardedTensor with_local_tensors(std::vector<torch::Tensor> tensors) const;

  const Extents& size() const { return size_; }
  DType dtype() const { return dtype_; }
  const std::vector<LocalShard>& local_shards() const { return local_shards_; }
  // Computes the chunks of all ranks; O(ranks). Returns nothing unless the tensor was made from a
  // spec or a mesh. A replicated chunk appears once. Leaves out empty chunks. But for a tensor
  // without elements, returns one empty chunk, the whole tensor.
  std::optional<std::vector<Box>> all_chunks() const;
  // Returns whether other ranks of a world of `world_size` may hold the same parts. False if a spec
  // or a mesh of all ranks places each part on one rank.
  bool may_have_replicas(int world_size) const;
  // Both are empty unless the tensor was made from a mesh.
  const std::optional<DeviceMesh>& mesh() const { return layout_->mesh; }
  const std::vector<Placement>& placements() const { return layout_->placements; }

 private:
  struct Layout {
    std::optional<ChunkShardingSpec> spec;
    std::optional<DeviceMesh> mesh;
    std::vector<Placement> placements;
  };
  ShardedTensor(Extents size, DType dtype, std::vector<LocalShard> local_shards, Layout layout);

  Extents size_;
  DType dtype_;
  std::vector<LocalShard> local_shards_;
  std::shared_ptr<const Layout> layout_;  // shared by copies, because a spec may list thousands of ranks
};

}  // namespace cairn
