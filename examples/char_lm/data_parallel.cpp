#include "data_parallel.hpp"

#include <algorithm>

#include <torch/torch.h>

namespace char_lm {
namespace {

// Returns how many of `count` micro-batches a rank works on. The last ranks may have fewer.
int share(int count, int size) { return (count + size - 1) / size; }

}  // namespace

int DataParallel::first(int count) const { return std::min(count, rank() * share(count, size())); }
int DataParallel::last(int count) const { return std::min(count, (rank() + 1) * share(count, size())); }

torch::Tensor DataParallel::gather(const torch::Tensor& rows, int count) const {
  if (size() == 1) return rows;
  // All ranks send the same number of rows. The last ones may pad with zeros, which are cut off
  // again.
  const int rows_each = share(count, size());
  const torch::Tensor sent = torch::zeros({rows_each, rows.size(1)}, rows.options());
  sent.narrow(0, 0, rows.size(0)).copy_(rows);
  const torch::Tensor received = torch::empty({rows_each * size(), rows.size(1)}, rows.options());
  group_.all_gather(received, sent);
  return received.narrow(0, 0, count);
}

}  // namespace char_lm
