// Sums the gradients of all ranks such that the number of ranks changes no bit of the result.
#pragma once

#include <torch/types.h>

#include <cairn/training/process_group.hpp>

namespace char_lm {

class DataParallel {
 public:
  explicit DataParallel(cairn::training::ProcessGroup group) : group_(std::move(group)) {}

  const cairn::training::ProcessGroup& group() const { return group_; }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  // This rank works on micro-batches [first(count), last(count)) of `count`.
  int first(int count) const;
  int last(int count) const;

  // Returns the rows of all micro-batches, in order, on every rank. `rows`: one row per micro-batch
  // of this rank.
  torch::Tensor gather(const torch::Tensor& rows, int count) const;

 private:
  cairn::training::ProcessGroup group_;
};

}  // namespace char_lm
