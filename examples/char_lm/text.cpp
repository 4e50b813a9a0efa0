#include "text.hpp"

#include <array>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

namespace char_lm {
namespace {

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kLength = 48;

// Returns the order of the windows in the epoch of `position`.
torch::Tensor order_of(const cairn::DataPosition& position, std::int64_t windows) {
  // Uses a separate generator, so that the one used for training does not advance.
  torch::Generator generator = at::detail::createCPUGenerator();
  generator.set_current_seed(static_cast<std::uint64_t>(position.seed) * 1'000'003 + static_cast<std::uint64_t>(position.epoch));
  return torch::randperm(windows, generator, torch::TensorOptions(torch::kInt64));
}

}  // namespace

Text::Text(const std::string& path, torch::Device device) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw std::runtime_error("cannot read the text " + path);
  if (bytes.size() < 2 * kLength) throw std::runtime_error("the text " + path + " is too short to learn from");
  std::array<std::int64_t, 256> numbers;
  numbers.fill(-1);
  for (const unsigned char byte : bytes) numbers[byte] = 0;
  for (auto& number : numbers) {
    if (number == 0) number = characters_++;
  }
  text_ = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kInt64);
  auto* values = text_.data_ptr<std::int64_t>();
  for (const unsigned char byte : bytes) *values++ = numbers[byte];
  text_ = text_.to(device);
}

std::vector<std::int64_t> Text::draw(cairn::DataPosition& position, int batches) const {
  const std::int64_t windows = text_.size(0) / kLength - 1;
  const std::int64_t shift = torch::randint(kLength, {1}, torch::kInt64).item<std::int64_t>();
  torch::Tensor order = order_of(position, windows);
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < batches * kRows; ++i) {
    if (position.index == windows) {
      ++position.epoch;
      position.index = 0;
      order = order_of(position, windows);
    }
    starts.push_back(order[position.index++].item<std::int64_t>() * kLength + shift);
  }
  return starts;
}

Batch Text::batch(const std::vector<std::int64_t>& drawn, int number) const {
  std::vector<torch::Tensor> rows;
  for (std::int64_t row = 0; row < kRows; ++row)
    rows.push_back(text_.narrow(0, drawn[static_cast<std::size_t>(number * kRows + row)], kLength + 1));
  const torch::Tensor batch = torch::stack(rows);
  return {batch.narrow(1, 0, kLength), batch.narrow(1, 1, kLength)};
}

}  // namespace char_lm
