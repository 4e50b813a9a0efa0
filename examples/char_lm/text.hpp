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
  // Throws std::runtime_error if the file cannot be read or is too short.
  explicit Text(const std::string& path);

  std::int64_t characters() const { return characters_; }  // different ones

  // Where the next samples begin, as many as `batches` need: the windows of the text in an order of their own for each epoch, all of
  // them shifted by some characters that LibTorch's random number generator draws. Moves the position on. Ranks with the same position
  // and the same state of that generator get the same ones.
  std::vector<std::int64_t> draw(cairn::DataPosition& position, int batches) const;
  // The batch of a number, of samples drawn.
  Batch batch(const std::vector<std::int64_t>& drawn, int number) const;

 private:
  std::int64_t characters_ = 0;
  torch::Tensor text_;  // [n], int64
};

}  // namespace char_lm
