// The training text as character numbers, and the batches drawn from it.
#pragma once

#include <cstdint>
#include <string>

#include <torch/types.h>

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

  // The same batch for the same numbers, on every rank and after every restart: there is no random state to keep.
  Batch batch(std::uint64_t seed, std::int64_t step, int micro_batch) const;

 private:
  std::int64_t characters_ = 0;
  torch::Tensor text_;  // [n], int64
};

}  // namespace char_lm
