// The checkpoint and resume code of the example: all that a trainer needs to write.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <cairn/runtime/cairn.hpp>

namespace char_lm {

struct Training {
  std::shared_ptr<torch::nn::Module> model;
  std::shared_ptr<torch::optim::Adam> optimizer;
  std::int64_t step = 0;  // steps done
};

// Saves under DIR/step_<N>. Every rank holds the whole model and writes its rows of each tensor.
void save_checkpoint(const Training& training, cairn::Checkpointer& checkpointer, const std::string& directory);

// Loads the newest complete checkpoint below `directory`, whatever number of ranks saved it. Returns its name, "" if there is none.
std::string resume(Training& training, cairn::Checkpointer& checkpointer, const std::string& directory);

}  // namespace char_lm
