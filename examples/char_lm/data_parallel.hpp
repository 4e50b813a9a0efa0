// Gradients of all ranks, summed so that the number of ranks changes no bit of the result.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace char_lm {

class DataParallel {
 public:
  // A Gloo group of the ranks that torchrun's variables describe (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which cairn-launch
  // sets as well. Without them: a single rank.
  static DataParallel from_environment();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // `count` micro-batches in all: this rank works on [first(), last()).
  int first(int count) const;
  int last(int count) const;

  // `rows`: one row per micro-batch of this rank. Returns the rows of all micro-batches, in their order, on every rank.
  torch::Tensor gather(const torch::Tensor& rows, int count);

 private:
  int rank_ = 0;
  int size_ = 1;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;  // a ProcessGroup in LibTorch 1.x, a Backend in 2.x
};

}  // namespace char_lm
