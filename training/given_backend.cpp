// A group that belongs to the trainer, of whatever kind.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cairn/training/c10d_backend_over.hpp>

namespace cairn::training {
namespace {

class GivenBackend : public C10dBackendOver<C10dGroup> {
 public:
  using C10dBackendOver::C10dBackendOver;

  Work all_gather(torch::Tensor output, torch::Tensor input) override {
    if (is_nccl_) return group_->_allgather_base(output, input);
    // All kinds of groups have this form. Gloo and MPI lack the other.
    std::vector<std::vector<torch::Tensor>> outputs{output.view(-1).chunk(group_->getSize())};
    std::vector<torch::Tensor> inputs{input};
    return group_->allgather(outputs, inputs);
  }
  Work reduce_scatter(torch::Tensor output, torch::Tensor input) override { return group_->_reduce_scatter_base(output, input); }

  bool sums(at::ScalarType type) const override {
    if (is_nccl_) return type != at::kBool;
    return type == at::kFloat || type == at::kDouble || type == at::kInt || type == at::kLong;
  }
  bool reduces_and_scatters() const override { return is_nccl_; }
  void abort() override {}

 private:
  const bool is_nccl_ = group_->getBackendName() == "nccl";
};

}  // namespace

std::unique_ptr<C10dBackend> make_backend_over(c10::intrusive_ptr<C10dGroup> group) {
  return std::make_unique<GivenBackend>(std::move(group));
}

}  // namespace cairn::training
