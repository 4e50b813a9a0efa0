// A small character model: embedding, GRU, linear layer.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

namespace char_lm {

class CharModelImpl : public torch::nn::Module {
 public:
  explicit CharModelImpl(std::int64_t characters);

  // `input`: character numbers, [rows, length]. Returns the scores of the next character,
  // [rows, length, characters].
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Embedding embedding_;
  torch::nn::GRU recurrence_;
  torch::nn::Linear scores_;
};
TORCH_MODULE(CharModel);

}  // namespace char_lm
