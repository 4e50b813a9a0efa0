#include <cairn/training/c10d_backends.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace cairn::training {

C10dBackend::C10dBackend(c10::intrusive_ptr<C10dGroup> group)
    : group_(std::move(group)), is_nccl_(group_->getBackendName() == "nccl") {}

C10dBackend::Work C10dBackend::all_gather(torch::Tensor output, torch::Tensor input) {
  if (is_nccl_) return group_->_allgather_base(output, input);
  // All kinds of groups have this form. Gloo and MPI lack the other.
  std::vector<std::vector<torch::Tensor>> outputs{output.view(-1).chunk(group_->getSize())};
  std::vector<torch::Tensor> inputs{input};
  return group_->allgather(outputs, inputs);
}

C10dBackend::Work C10dBackend::all_to_all(torch::Tensor output, torch::Tensor input) {
  std::vector<std::int64_t> equal;
  return group_->alltoall_base(output, input, equal, equal);
}

C10dBackend::Work C10dBackend::all_reduce(torch::Tensor tensor) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  return group_->allreduce(tensors);
}

C10dBackend::Work C10dBackend::broadcast(torch::Tensor tensor, int root) {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return group_->broadcast(tensors, options);
}

C10dBackend::Work C10dBackend::reduce_scatter(torch::Tensor output, torch::Tensor input) {
  return group_->_reduce_scatter_base(output, input);
}

bool C10dBackend::sums(at::ScalarType type) const {
  if (is_nccl_) return type != at::kBool;
  return type == at::kFloat || type == at::kDouble || type == at::kInt || type == at::kLong;
}

std::unique_ptr<C10dBackend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout, const std::string& address) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address.empty() ? "127.0.0.1" : address));
  // As many as c10d gives a group with one device.
  options->threads = 2;
  return std::make_unique<C10dBackend>(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options)));
}

}  // namespace cairn::training
