// Defines names, the same in every LibTorch version, for the types of c10d's process groups. c10d
// is LibTorch's library of collectives.
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
  c10::intrusive_ptr<C10dGroup> on_host;    // a group for tensors in host memory, such as a Gloo or MPI group; may be null
  c10::intrusive_ptr<C10dGroup> on_device;  // a group for tensors on CUDA devices, such as an NCCL group; may be null
  // May be null. If not null, Cairn makes subgroups through this store. If `on_host` or `on_device`
  // is null, Cairn also makes the missing group through this store, as `from_store` does.
  c10::intrusive_ptr<c10d::Store> store;
  std::vector<int> world_ranks;  // indexed by rank in the groups; empty: 0, 1, …
};

}  // namespace cairn::training
