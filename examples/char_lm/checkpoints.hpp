// The checkpoint and resume code of the example. A trainer needs no other code for that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <cairn/runtime/cairn.hpp>
#include <cairn/runtime/runs/checkpoint_manager.hpp>

namespace char_lm {

struct Training {
  std::shared_ptr<torch::nn::Module> model;
  std::shared_ptr<torch::optim::Adam> optimizer;
  std::shared_ptr<cairn::DataPosition> position;  // position of the next batches
  std::int64_t step = 0;                          // steps done
};

// Returns options that save every `save_every` steps (0: never), and when a scheduler announces the
// end of the job. The last `keep` checkpoints stay (0: all).
cairn::CheckpointManagerOptions keeping(std::int64_t save_every, std::uint32_t keep);

// Saves if a save is due. Call it after each step, with its loss. Every rank holds the whole model
// and writes its rows of each tensor. With `in_background`, returns once the state is copied.
void save_if_due(const Training& training, float loss, cairn::CheckpointManager& manager, bool in_background);

// Loads the latest sound checkpoint, whatever number of ranks saved it. Returns nothing if there is
// none.
std::optional<cairn::ValidCheckpoint> resume(Training& training, cairn::CheckpointManager& manager);

}  // namespace char_lm
