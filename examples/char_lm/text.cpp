#include "text.hpp"

#include <array>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <torch/torch.h>

namespace char_lm {
namespace {

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kLength = 48;

// One step of SplitMix64: a well mixed number from a counter.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

Text::Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw std::runtime_error("cannot read the text " + path);
  if (bytes.size() < kLength + 2) throw std::runtime_error("the text " + path + " is too short to learn from");
  std::array<std::int64_t, 256> numbers;
  numbers.fill(-1);
  for (const unsigned char byte : bytes) numbers[byte] = 0;
  for (auto& number : numbers) {
    if (number == 0) number = characters_++;
  }
  text_ = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kInt64);
  auto* values = text_.data_ptr<std::int64_t>();
  for (const unsigned char byte : bytes) *values++ = numbers[byte];
}

Batch Text::batch(std::uint64_t seed, std::int64_t step, int micro_batch) const {
  const auto starts = static_cast<std::uint64_t>(text_.size(0) - kLength);
  std::vector<torch::Tensor> rows;
  std::uint64_t state = mix(mix(mix(seed) ^ static_cast<std::uint64_t>(step)) ^ static_cast<std::uint64_t>(micro_batch));
  for (std::int64_t row = 0; row < kRows; ++row) {
    state = mix(state);
    rows.push_back(text_.narrow(0, static_cast<std::int64_t>(state % starts), kLength + 1));
  }
  const torch::Tensor drawn = torch::stack(rows);
  return {drawn.narrow(1, 0, kLength), drawn.narrow(1, 1, kLength)};
}

}  // namespace char_lm
