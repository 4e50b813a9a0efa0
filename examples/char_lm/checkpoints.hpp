// The checkpoint and resume code of the example: all that a trainer needs to write.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/checkpoint_manager.hpp>

namespace char_lm {

struct Training {
  std::shared_ptr<torch::nn::Module> model;
  std::shared_ptr<torch::optim::Adam> optimizer;
  std::shared_ptr<cairn::DataPosition> position;  // of the next batches
  std::int64_t step = 0;                          // steps done
};

// Saves every so many steps (0: never), and when a scheduler announces the end of the job; of checkpoints the last `keep` stay (0: all).
cairn::CheckpointManagerOptions keeping(std::int64_t save_every, std::uint32_t keep);

// To be called after each step, with its loss. Every rank holds the whole model and writes its rows of each tensor. In the background:
// returns once the state is copied.
void save_if_due(const Training& training, float loss, cairn::CheckpointManager& manager, bool in_background);

// Loads the latest checkpoint that is whole, whatever number of ranks saved it; nothing if there is none.
std::optional<cairn::ValidCheckpoint> resume(Training& training, cairn::CheckpointManager& manager);

}  // namespace char_lm
