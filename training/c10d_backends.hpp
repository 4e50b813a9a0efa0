// The c10d backends of a ProcessGroup: Gloo for tensors in host memory, NCCL for tensors on CUDA
// devices, or the trainer's own groups. Internal.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cairn/training/c10d_groups.hpp>

namespace cairn::training {

// One c10d process group of more than one rank. The caller passes contiguous, non-empty tensors and
// makes one call at a time. Functions throw whatever c10d throws. On devices, `Work::wait` orders
// the caller's stream after the collective and may return before the collective has finished.
class C10dBackend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  explicit C10dBackend(c10::intrusive_ptr<C10dGroup> group);
  virtual ~C10dBackend() = default;

  // Gathers bytes. `output` must have room for the inputs of all ranks, in rank order.
  Work all_gather(torch::Tensor output, torch::Tensor input);
  // Sends part i of `input` to rank i. `output` holds the received parts in the order of their
  // senders.
  Work all_to_all(torch::Tensor output, torch::Tensor input);
  Work all_reduce(torch::Tensor tensor);
  Work broadcast(torch::Tensor tensor, int root);
  // Stores this rank's part of the sum over the ranks in `output`. Must only be called if
  // `reduces_and_scatters()` is true.
  Work reduce_scatter(torch::Tensor output, torch::Tensor input);

  // Returns whether the backend itself can sum elements of this type.
  bool sums(at::ScalarType type) const;
  bool reduces_and_scatters() const { return is_nccl_; }
  // Aborts the collectives in flight on this rank. May be called from any thread. Does nothing to
  // the trainer's own groups, nor to Gloo groups: destroying a Gloo group closes its connections,
  // which ends collectives in flight on all ranks.
  virtual void abort() {}

 private:
  const c10::intrusive_ptr<C10dGroup> group_;
  const bool is_nccl_;
};

// Makes a Gloo backend. Returns when all ranks have joined.
std::unique_ptr<C10dBackend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout, const std::string& address);
// Makes an NCCL backend. The first collective creates the communicators. Throws kUnsupported if
// Cairn was built without NCCL.
std::unique_ptr<C10dBackend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout);

}  // namespace cairn::training
