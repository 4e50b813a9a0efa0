#include <cairn/training/c10d_backends.hpp>

#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace cairn::training {

std::unique_ptr<C10dBackend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               std::chrono::milliseconds timeout, const std::string& address) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address.empty() ? "127.0.0.1" : address));
  // As many as c10d gives a group with one device.
  options->threads = 2;
  return std::make_unique<C10dBackend>(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options)));
}

}  // namespace cairn::training
