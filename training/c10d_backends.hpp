// A c10d backend of a ProcessGroup: Gloo for tensors in host memory, NCCL for tensors on CUDA
// devices, or a group of the trainer's. Internal.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cairn/training/c10d_groups.hpp>

namespace cairn::training {

// One c10d process group of more than one rank.
class C10dBackend {
 public:
  explicit C10dBackend(c10::intrusive_ptr<C10dGroup> group)
      : group_(std::move(group)), is_nccl_(group_->getBackendName() == "nccl") {}
  virtual ~C10dBackend() = default;

  const c10::intrusive_ptr<C10dGroup>& group() const { return group_; }
  bool is_nccl() const { return is_nccl_; }
  // Aborts the collectives in flight on this rank. May be called from any thread. Does nothing to
  // the trainer's own groups, nor to Gloo groups: destroying a Gloo group closes its connections,
  // which ends collectives in flight on all ranks.
  virtual void abort() {}

 private:
  const c10::intrusive_ptr<C10dGroup> group_;
  const bool is_nccl_;
};

// Makes an NCCL backend. The first collective creates the communicators. Throws kUnsupported if
// Cairn was built without NCCL.
std::unique_ptr<C10dBackend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout);

}  // namespace cairn::training
