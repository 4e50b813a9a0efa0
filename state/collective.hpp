// Exchanges tensors between some ranks of a world, over the trainer's own connections.
// training::ProcessGroup implements it, and says which tensors it takes and what it throws.
#pragma once

#include <vector>

#include <torch/types.h>

namespace cairn {

// All ranks of a group make the same calls in the same order.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;                       // in this group
  virtual const std::vector<int>& ranks() const = 0;  // world ranks, indexed by rank in this group
  // Copies the tensor of `root`, a rank of this group, to all ranks.
  virtual void broadcast(const torch::Tensor& tensor, int root) const = 0;
  // Returns when all ranks have called it. Throws if an earlier call is known to have failed.
  virtual void barrier() const = 0;
};

}  // namespace cairn
