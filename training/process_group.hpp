// Exchanges tensors between the ranks of a trainer: one small interface over c10d's process groups.
//
// Every rank of a group must make the same calls in the same order, with tensors of the same sizes
// and types. A ProcessGroup is a handle: copies share one group. Any thread may call a group, but
// only one call at a time. Functions named `..._async` return a Pending; do not change the tensors
// before `Pending::wait` has returned.
//
// Tensors in host memory go through Gloo, tensors on CUDA devices through NCCL
// ("cpu:gloo,cuda:nccl"), and one group serves both. Each rank needs a device of its own. On
// devices, calls and `wait` may return before the collective has finished, as always in LibTorch.
// They only ensure that later work on the current stream runs after the collective. If the
// collective fails or exceeds the timeout, all work that waits for it on the device ends, and the
// next call throws. All results since the last successful call are then invalid.
//
// Cairn does not change the environment. Cairn's own NCCL groups do not end the process when a
// collective fails or is late, whatever TORCH_NCCL_ASYNC_ERROR_HANDLING says; other NCCL groups of
// the process obey that variable. Before LibTorch 2.8, c10d's heartbeat monitor, which ends the
// process when a collective hangs, cannot be turned off for one group: set
// TORCH_NCCL_ENABLE_MONITORING=0 and TORCH_NCCL_DUMP_ON_TIMEOUT=0 before the program starts.
//
// LibTorch 2.x records collectives in a global map that no lock protects. If several threads use
// groups at the same time, set TORCH_FR_BUFFER_SIZE=0 in the environment.
//
// Calls on the host do not hang: they throw kDeadline after the timeout, and kUnavailable if a peer
// is gone. The error names the collective, this rank, and the ranks that have not responded. One
// call may hang: the first collective on devices in a group made by `from_c10d` without a store,
// because c10d then connects the ranks with the trainer's settings.
//
// A failure also breaks all related groups in this process: the group that `subgroup` was first
// called on, and all groups made from it, directly or indirectly. Later calls of any of them throw
// kUnavailable with the first failure.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

#include <cairn/state/collective.hpp>
#include <cairn/training/c10d_groups.hpp>

namespace c10d {
class Store;
}

namespace cairn::training {

struct ProcessGroupOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  // for each collective, and for making the group
  // The name or address at which other ranks reach this rank. Empty: loopback.
  std::string address;
};

// A collective in flight. If a Pending is destroyed without `wait`, the collective continues; if
// the collective fails, the next call throws.
class Pending {
 public:
  Pending() noexcept;  // no collective in flight
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  // Returns once the output is available; a second call returns at once. Throws as the group's
  // calls do.
  void wait();

 private:
  friend class ProcessGroup;
  struct State;
  std::unique_ptr<State> state_;
};

// LoadOptions::replica_group takes one as a Collective.
class ProcessGroup final : public Collective {
 public:
  // Returns a group of one rank, whose collectives finish at once.
  static ProcessGroup single();
  // Makes a group through a store that all ranks can reach. Returns when all ranks have joined.
  // Apart from polling, the number of store requests per rank does not grow with the number of
  // ranks. The ranks connect for collectives in host memory only when the first such collective is
  // called. `name` separates the keys of several groups in one store. Each group needs its own
  // name, even after an earlier group has ended or failed.
  static ProcessGroup from_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 const ProcessGroupOptions& options = {}, const std::string& name = "training");

  // Makes a group that communicates through the trainer's existing groups. Without a store, it
  // makes no connections or communicators of its own. The trainer may go on using its groups, but
  // not at the same time as this one: every rank must make all calls, the trainer's and Cairn's, in
  // the same order. `options.address` and `name` are used only with a store. Throws
  // kInvalidArgument if both groups are null, or if they differ in their size or in this process's
  // rank.
  //
  // Without a store, a collective on host tensors throws kUnsupported if `on_host` is null, a
  // collective on device tensors throws it if `on_device` is null, and `subgroup` throws
  // kPrecondition for more than one rank. `fully_shard`, `replicate` and `parallelize` also send
  // small tensors in host memory: they need `on_host` or `store`. For meshes of several axes, see
  // `ProcessMesh::from_axes`.
  //
  // Cairn neither aborts nor closes a group of the trainer's. After a failure, the collective may
  // still be in flight there, and other ranks learn of the failure when their own call fails or
  // exceeds the timeout. On devices, work that waits for a lost rank ends only when the trainer's
  // group ends it. Without a store, errors do not name the missing ranks.
  static ProcessGroup from_c10d(const C10dGroups& groups, const ProcessGroupOptions& options = {},
                                const std::string& name = "training");

  int rank() const override;  // in this group
  int size() const;
  const std::vector<int>& ranks() const override;  // world ranks, indexed by rank in this group
  int world_rank() const { return ranks()[static_cast<std::size_t>(rank())]; }

  // Makes a group of some ranks of this group, in the given order, including this rank. Other ranks
  // need not call it. All listed ranks must pass the same `name`. If they make several groups of
  // the same name, they must make them in the same order. Throws kInvalidArgument if the list is
  // invalid or lacks this rank.
  ProcessGroup subgroup(const std::vector<int>& ranks, const std::string& name) const;

  // All tensors must be contiguous, and neither conjugate nor negative views; otherwise collectives
  // throw kInvalidArgument. Sums work for 16- to 64-bit floats, int32 and int64, and throw
  // kUnsupported for all other types.
  //
  // Concatenates the inputs of all ranks in `output`, which has `size()` times the elements of
  // `input`. Any dtype.
  void all_gather(const torch::Tensor& output, const torch::Tensor& input) const;
  Pending all_gather_async(const torch::Tensor& output, const torch::Tensor& input) const;
  // Sums `input` over the ranks and stores this rank's part of the sum in `output`. `input` has
  // `size()` times the elements of `output`; the part of rank 0 comes first. In host memory the sum
  // is made in rank order, in float32 for half and bfloat16, and rounded once. On devices, NCCL
  // chooses the order and the precision.
  void reduce_scatter(const torch::Tensor& output, const torch::Tensor& input) const;
  Pending reduce_scatter_async(const torch::Tensor& output, const torch::Tensor& input) const;
  // Sums over the ranks in place. All ranks get bitwise identical results.
  void all_reduce(const torch::Tensor& tensor) const;
  Pending all_reduce_async(const torch::Tensor& tensor) const;
  // Copies the tensor of `root`, a rank of this group, to all ranks. Any dtype.
  void broadcast(const torch::Tensor& tensor, int root) const override;
  // Returns when all ranks have called `barrier`; devices may still have work queued. If the group
  // was made from `on_device` alone, without `on_host` and `store`, `barrier` also waits for the
  // work on the device's current stream.
  void barrier() const override;

 private:
  friend class Pending;
  class Implementation;
  explicit ProcessGroup(std::shared_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
  // Calls `start` with the backend for `input` and the Pending's state, which it fills. One rank
  // alone copies instead.
  template <class Start>
  Pending begin(const char* collective, const torch::Tensor& output, const torch::Tensor& input, const Start& start) const;
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace cairn::training
