// Training with the model wrapped by Cairn: sharded, replicated, or with layers that are cut.
#pragma once

#include <string>

#include "checkpoints.hpp"
#include "data_parallel.hpp"
#include "model.hpp"
#include "text.hpp"

namespace char_lm {

// "full": each rank keeps its rows of every parameter; "hybrid": the same within each half of the ranks; "replicate": each keeps all; "tp": the embedding and the scores are cut, and all ranks
// work on the same batches. Optimizers are made afterwards.
void wrap(CharModel& model, const DataParallel& parallel, const std::string& how);

// One step over `micro_batches`, which divide by the number of ranks (std::runtime_error if not). Each rank adds up the gradients of its
// own, and the last backward pass averages them. Counts the step. Returns the mean loss over all ranks.
float wrapped_step(CharModel& model, Training& training, const Text& text, int micro_batches, const DataParallel& parallel);

}  // namespace char_lm
