#include "data_parallel.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace char_lm {
namespace {

constexpr std::chrono::seconds kTimeout{300};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string("WORLD_SIZE is set but ") + name + " is not: start with cairn-launch");
  return value;
}

int number(const char* name) {
  const std::string value = variable(name);
  try {
    return std::stoi(value);
  } catch (const std::exception&) {
    throw std::runtime_error(std::string(name) + " is no number: " + value);
  }
}

// How many of `count` micro-batches a rank works on, the last ranks less.
int share(int count, int size) { return (count + size - 1) / size; }

}  // namespace

DataParallel DataParallel::from_environment() {
  DataParallel parallel;
  if (std::getenv("WORLD_SIZE") == nullptr) return parallel;
  parallel.rank_ = number("RANK");
  parallel.size_ = number("WORLD_SIZE");
  if (parallel.size_ == 1) return parallel;

  const std::string host = variable("MASTER_ADDR");
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(number("MASTER_PORT"));
  store_options.multiTenant = true;  // Cairn meets at the same address
  store_options.numWorkers = parallel.size_;
  store_options.waitWorkers = false;
  // torchrun may serve the store itself.
  const char* const served = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  store_options.isServer = parallel.rank_ == 0 && (served == nullptr || std::string(served) != "True");
  auto store = c10::make_intrusive<c10d::TCPStore>(host, store_options);

  auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  const bool one_machine = host == "localhost" || host.rfind("127.", 0) == 0;
  options->devices.push_back(one_machine ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                         : c10d::ProcessGroupGloo::createDefaultDevice());
  options->threads = 1;
  parallel.group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("char_lm", store),
                                                                parallel.rank_, parallel.size_, std::move(options));
  return parallel;
}

int DataParallel::first(int count) const { return std::min(count, rank_ * share(count, size_)); }
int DataParallel::last(int count) const { return std::min(count, (rank_ + 1) * share(count, size_)); }

torch::Tensor DataParallel::gather(const torch::Tensor& rows, int count) {
  if (size_ == 1) return rows;
  // All ranks send equally many rows; the last ones may have fewer, and fill up with zeros that are cut off again.
  const int rows_each = share(count, size_);
  std::vector<at::Tensor> sent{torch::zeros({rows_each, rows.size(1)})};
  sent.front().narrow(0, 0, rows.size(0)).copy_(rows);
  torch::Tensor received = torch::empty({rows_each * size_, rows.size(1)});
  std::vector<std::vector<at::Tensor>> outputs{received.chunk(size_)};
  group_->allgather(outputs, sent)->wait();
  return received.narrow(0, 0, count);
}

}  // namespace char_lm
