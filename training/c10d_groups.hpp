// The types of c10d's process groups, in every LibTorch version. c10d is LibTorch's library of
// collectives.
#pragma once

#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace cairn::training {

// The base class of c10d's Gloo, NCCL and MPI groups in this LibTorch. In LibTorch 2.x,
// `c10d::ProcessGroup::getBackend(device_type)` returns such a group.
#if TORCH_VERSION_MAJOR >= 2
using C10dGroup = c10d::Backend;
#else
using C10dGroup = c10d::ProcessGroup;
#endif

// The trainer's own c10d groups, for `ProcessGroup::from_c10d`. All must have the same ranks in the
// same order.
struct C10dGroups {
  c10::intrusive_ptr<C10dGroup> on_host;    // for tensors in host memory, such as Gloo's or MPI's; may be null
  c10::intrusive_ptr<C10dGroup> on_device;  // for tensors on CUDA devices, such as NCCL's; may be null
  // May be null. Otherwise Cairn uses the store to make subgroups, and the group of `on_host` or
  // `on_device` that is null, as `from_store` does.
  c10::intrusive_ptr<c10d::Store> store;
  std::vector<int> world_ranks;  // indexed by rank in the groups; empty: 0, 1, …
};

}  // namespace cairn::training
