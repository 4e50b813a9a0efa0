// A tensor of which this rank holds only parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include <cairn/planning/box.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/state/device_mesh.hpp>

namespace cairn {

// Cuts one dimension over a list of ranks, in that order, in chunks of ceil(n / count). After PyTorch's ChunkShardingSpec.
// Ranks that are not listed hold nothing. A rank may be listed more than once.
struct ChunkShardingSpec {
  std::int64_t dim = 0;         // negative counts from the last
  std::vector<int> placements;  // global ranks
};

struct LocalShard {
  torch::Tensor tensor;  // shares memory with what the trainer uses: loading fills it in place
  Extents offsets;       // within the global tensor
};

class ShardedTensor {
 public:
  // By hand: `local_shards` are parts of a tensor of size `size`. Throws kInvalidArgument if a shard does not fit, dtypes differ,
  // or two local shards overlap; kUnsupported if a shard cannot be stored (sparse, quantized). An empty list is fine: this rank
  // holds nothing.
  ShardedTensor(Extents size, DType dtype, std::vector<LocalShard> local_shards);

  // From a spec: allocates the local shards of `rank`, zero-filled, on `options`' device.
  static ShardedTensor zeros(const ChunkShardingSpec& spec, const Extents& size, int rank,
                             const torch::TensorOptions& options = {});
  // From a spec: copies this rank's parts out of the whole tensor.
  static ShardedTensor distribute(const torch::Tensor& whole, const ChunkShardingSpec& spec, int rank);
  // From a mesh: copies this rank's part out of the whole tensor.
  static ShardedTensor distribute(const torch::Tensor& whole, const DeviceMesh& mesh, const std::vector<Placement>& placements,
                                  int rank);
  // From a mesh: `local` is this rank's part and stays shared. Throws kInvalidArgument if its size is not that of `local_box`. On a
  // rank outside the mesh, `local` must be empty and only gives the dtype.
  static ShardedTensor from_local(torch::Tensor local, const Extents& size, const DeviceMesh& mesh,
                                  const std::vector<Placement>& placements, int rank);

  // The same tensor with its parts elsewhere: `tensors[i]` takes the place of the tensor of local shard i. Throws kInvalidArgument if
  // their number, sizes or dtypes differ.
  ShardedTensor with_local_tensors(std::vector<torch::Tensor> tensors) const;

  const Extents& size() const { return size_; }
  DType dtype() const { return dtype_; }
  const std::vector<LocalShard>& local_shards() const { return local_shards_; }
  // Computes the chunks of all ranks; O(ranks). Returns nothing unless the tensor was made from a spec or a mesh. Replicated
  // chunks appear once, empty ones not at all.
  std::optional<std::vector<Box>> all_chunks() const;
  // Set when made from a mesh.
  const std::optional<DeviceMesh>& mesh() const { return layout_->mesh; }
  const std::vector<Placement>& placements() const { return layout_->placements; }

 private:
  struct Layout {
    std::optional<ChunkShardingSpec> spec;
    std::optional<DeviceMesh> mesh;
    std::vector<Placement> placements;
  };

  Extents size_;
  DType dtype_;
  std::vector<LocalShard> local_shards_;
  std::shared_ptr<const Layout> layout_;  // shared by copies: a spec may list thousands of ranks
};

}  // namespace cairn
