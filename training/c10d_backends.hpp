// The groups of c10d that a ProcessGroup talks through: Gloo for tensors in host memory, NCCL for those on CUDA devices. Internal.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace cairn::training {

// One group of c10d, with tensors as it wants them: contiguous, not empty, more than one rank. Calls come one after the other. What goes
// wrong is thrown as c10d throws it. On devices a Work's `wait` orders the caller's stream behind the collective, and returns before it
// is done.
class C10dBackend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  virtual ~C10dBackend() = default;

  // Of bytes: `output` has room for the inputs of all ranks.
  virtual Work all_gather(torch::Tensor output, torch::Tensor input) = 0;
  // Part i of `input` goes to rank i, which finds it in `output` at its sender's place.
  virtual Work all_to_all(torch::Tensor output, torch::Tensor input) = 0;
  virtual Work all_reduce(torch::Tensor tensor) = 0;
  virtual Work broadcast(torch::Tensor tensor, int root) = 0;
  // This rank's part of the sum over the ranks; only where `reduces_and_scatters`.
  virtual Work reduce_scatter(torch::Tensor output, torch::Tensor input) = 0;

  // Whether sums of this type are made by the backend itself.
  virtual bool sums(at::ScalarType type) const = 0;
  virtual bool reduces_and_scatters() const = 0;
  // Ends what is under way, on this rank. From any thread.
  virtual void abort() = 0;
};

// Returns when all ranks have come.
std::unique_ptr<C10dBackend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout, const std::string& address);
// Communicators are made by the first collective. Throws kUnsupported if Cairn was built without NCCL.
std::unique_ptr<C10dBackend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout);

}  // namespace cairn::training
