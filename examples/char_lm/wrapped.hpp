// Trains with a model that Cairn wraps: sharded, replicated, or tensor parallel.
#pragma once

#include <string>

#include "checkpoints.hpp"
#include "data_parallel.hpp"
#include "model.hpp"
#include "text.hpp"

namespace char_lm {

// Wraps the model. `how`: "full": each rank keeps its rows of every parameter; "hybrid": the same
// within each half of the ranks; "replicate": each rank keeps everything; "tp": the embedding and
// the output layer are split over the ranks, and all ranks work on the same batches. Create
// optimizers afterwards.
void wrap(CharModel& model, const DataParallel& parallel, const std::string& how);

// Trains one step over `micro_batches`, and counts the step. Throws std::runtime_error unless the
// number of ranks divides `micro_batches`. Each rank accumulates its own gradients, and the last
// backward pass averages them over the ranks. Returns the mean loss over all ranks.
float wrapped_step(CharModel& model, Training& training, const Text& text, int micro_batches, const DataParallel& parallel);

}  // namespace char_lm
