// The training text as character numbers, and the batches drawn from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include <cairn/state/adapters.hpp>

namespace char_lm {

struct Batch {
  torch::Tensor input;   // [rows, length], int64
  torch::Tensor target;  // the same, one character later
};

class Text {
 public:
  // Batches are on `device`. Throws std::runtime_error if the file cannot be read or is too short.
  Text(const std::string& path, torch::Device device);

  std::int64_t characters() const { return characters_; }  // distinct characters

  // Returns the start offsets of the samples of the next `batches` batches, and advances the
  // position. Each epoch visits the windows of the text in a different order. All windows are
  // shifted by a number of characters drawn from LibTorch's random number generator. Ranks with the
  // same position and the same generator state get the same samples.
  std::vector<std::int64_t> draw(cairn::DataPosition& position, int batches) const;
  // Returns batch `number` of the samples that `draw` returned.
  Batch batch(const std::vector<std::int64_t>& drawn, int number) const;

 private:
  std::int64_t characters_ = 0;
  torch::Tensor text_;  // [n], int64, on the device
};

}  // namespace char_lm
