#include "model.hpp"

namespace char_lm {
namespace {

constexpr std::int64_t kEmbeddingSize = 48;
constexpr std::int64_t kHiddenSize = 96;

}  // namespace

CharModelImpl::CharModelImpl(std::int64_t characters)
    : embedding_(characters, kEmbeddingSize),
      recurrence_(torch::nn::GRUOptions(kEmbeddingSize, kHiddenSize).batch_first(true)),
      scores_(kHiddenSize, characters) {
  register_module("embedding", embedding_);
  register_module("recurrence", recurrence_);
  register_module("scores", scores_);
}

torch::Tensor CharModelImpl::forward(const torch::Tensor& input) { return scores_(std::get<0>(recurrence_(embedding_(input)))); }

}  // namespace char_lm
