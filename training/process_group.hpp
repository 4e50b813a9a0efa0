// How the ranks of a trainer exchange tensors: one small interface over c10d's process groups.
//
// Every rank of a group makes the same calls, in the same order, with tensors of the same sizes and types. A ProcessGroup is a handle:
// copies share one group. Calls of one group come one after the other, from any thread; `..._async` returns a Pending, and the tensors
// stay as they are until it is waited for.
//
// Tensors in host memory go through Gloo, those on CUDA devices through NCCL ("cpu:gloo,cuda:nccl"), each rank with a device of its own;
// one group serves both. On devices, calls and `wait` return when the work is ordered before whatever the current stream gets next, as
// with all of LibTorch; what is not done by the timeout, or fails there, ends all that waits for it on the device, and the next
// call throws; results since the last call that did not throw are then void.
//
// The environment is not changed. Cairn's NCCL groups do not end the process when a collective fails or is late, whatever
// TORCH_NCCL_ASYNC_ERROR_HANDLING says; other NCCL groups of the process obey it. Before LibTorch 2.8 the heartbeat monitor
// cannot be turned off for one group: set TORCH_NCCL_ENABLE_MONITORING=0 and TORCH_NCCL_DUMP_ON_TIMEOUT=0 before the program
// starts.
//
// LibTorch 2.x records collectives in a map of the process that no lock guards: there, threads that use groups at the same time need
// TORCH_FR_BUFFER_SIZE=0 in the environment.
//
// No call hangs: one that is not done by the timeout throws kDeadline, one whose peer is gone kUnavailable; both say which collective
// it was, on which rank, and which ranks have not been heard of since. The group, all that were made from it, and all that it was made
// from are then broken: later calls throw the first failure again, kUnavailable.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

namespace c10d {
class Store;
}

namespace cairn::training {

struct ProcessGroupOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  // of each collective, and of making the group
  // The name or address at which this rank is reached by the others. Empty: loopback.
  std::string address;
};

// A collective that is under way. Destroying it without `wait` lets it go on; its failure is then the next call's.
class Pending {
 public:
  Pending() noexcept;  // nothing is under way
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  // Returns once the output is there; at once the second time. Throws as the group's calls do.
  void wait();

 private:
  friend class ProcessGroup;
  struct State;
  static Pending of(State state);
  std::unique_ptr<State> state_;
};

class ProcessGroup {
 public:
  // One rank alone: every collective is done at once.
  static ProcessGroup single();
  // Makes a group through a store that all ranks reach. Returns when all ranks have come. The requests per rank, polling aside,
  // do not grow with the number of ranks. The first collective on tensors in host memory makes the connections between hosts.
  // `name` separates the keys of several groups in one store. Each group needs a name of its own, also after an earlier group has
  // ended or failed.
  static ProcessGroup from_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 const ProcessGroupOptions& options = {}, const std::string& name = "training");

  int rank() const;  // within this group
  int size() const;
  const std::vector<int>& ranks() const;  // of the world that this group was made from, by rank of this group
  int world_rank() const { return ranks()[static_cast<std::size_t>(rank())]; }
  std::chrono::milliseconds timeout() const;

  // Of some ranks of this group, in this order; this rank is one of them. Ranks that are not listed need not call. `name` is the same on
  // all listed ranks; they make groups of one name in the same order. Throws kInvalidArgument for a list that is none or lacks this rank.
  ProcessGroup subgroup(const std::vector<int>& ranks, const std::string& name) const;

  // All tensors are contiguous, and no conjugate or negative views (kInvalidArgument if not).
  // `output` gets the inputs of all ranks, one after the other: it has `size()` times the elements of `input`. Any dtype.
  void all_gather(const torch::Tensor& output, const torch::Tensor& input) const;
  Pending all_gather_async(const torch::Tensor& output, const torch::Tensor& input) const;
  // `output` gets this rank's part of the sum over the ranks: `input` has `size()` times its elements, those for rank 0 first. The
  // sum is made in the order of the ranks, in float32 for half and bfloat16, and rounded once; on devices, in NCCL's way.
  void reduce_scatter(const torch::Tensor& output, const torch::Tensor& input) const;
  Pending reduce_scatter_async(const torch::Tensor& output, const torch::Tensor& input) const;
  // The sum over the ranks, in place; bit for bit the same on all of them.
  void all_reduce(const torch::Tensor& tensor) const;
  Pending all_reduce_async(const torch::Tensor& tensor) const;
  // What `root`, a rank of this group, has. Any dtype.
  void broadcast(const torch::Tensor& tensor, int root) const;
  // Returns when all ranks have called it; devices may still be at work.
  void barrier() const;

 private:
  friend class Pending;
  class Implementation;
  explicit ProcessGroup(std::shared_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace cairn::training
