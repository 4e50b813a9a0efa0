// Implements the collectives that every c10d process group runs the same way. Internal.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cairn/training/c10d_backends.hpp>

namespace cairn::training {

// `Group` is ProcessGroupGloo, ProcessGroupNCCL, or their base class.
template <class Group>
class C10dBackendOver : public C10dBackend {
 public:
  explicit C10dBackendOver(c10::intrusive_ptr<Group> group) : group_(std::move(group)) {}

  Work all_to_all(torch::Tensor output, torch::Tensor input) override {
    std::vector<std::int64_t> equal;
    return group_->alltoall_base(output, input, equal, equal);
  }
  Work all_reduce(torch::Tensor tensor) override {
    std::vector<torch::Tensor> tensors{tensor};
    return group_->allreduce(tensors);
  }
  Work broadcast(torch::Tensor tensor, int root) override {
    std::vector<torch::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group_->broadcast(tensors, options);
  }

 protected:
  const c10::intrusive_ptr<Group> group_;
};

}  // namespace cairn::training
