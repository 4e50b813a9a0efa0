#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cairn/training/c10d_backend_over.hpp>

namespace cairn::training {
namespace {

class GlooBackend : public C10dBackendOver<c10d::ProcessGroupGloo> {
 public:
  using C10dBackendOver::C10dBackendOver;

  Work all_gather(torch::Tensor output, torch::Tensor input) override {
    std::vector<std::vector<torch::Tensor>> outputs{output.view(-1).chunk(group_->getSize())};
    std::vector<torch::Tensor> inputs{input};
    return group_->allgather(outputs, inputs);
  }
  Work reduce_scatter(torch::Tensor, torch::Tensor) override { throw std::logic_error("Gloo's groups have no reduce-scatter"); }

  bool sums(at::ScalarType type) const override {
    return type == at::kFloat || type == at::kDouble || type == at::kInt || type == at::kLong;
  }
  bool reduces_and_scatters() const override { return false; }
  // Nothing to do: destroying the group closes its connections, which ends collectives in flight on
  // all ranks.
  void abort() override {}
};

}  // namespace

std::unique_ptr<C10dBackend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout, const std::string& address) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address.empty() ? "127.0.0.1" : address));
  // As many as c10d gives a group with one device.
  options->threads = 2;
  return std::make_unique<GlooBackend>(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options)));
}

}  // namespace cairn::training
