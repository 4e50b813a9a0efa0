#include <cairn/training/ranks_alike.hpp>

#include <algorithm>

#include <torch/torch.h>

namespace cairn::training {

std::vector<int> ranks_that_differ(const Digest& own, const ProcessGroup& group) {
  torch::Tensor sent = torch::empty({static_cast<std::int64_t>(own.size())}, torch::kUInt8);
  std::copy(own.begin(), own.end(), sent.data_ptr<std::uint8_t>());
  const torch::Tensor all = torch::empty({group.size(), sent.numel()}, torch::kUInt8);
  // Every rank gets all digests, so that every rank finds the same differences and none goes on
  // alone.
  group.all_gather(all, sent);
  std::vector<int> differing;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (!all[rank].equal(all[0])) differing.push_back(group.ranks()[static_cast<std::size_t>(rank)]);
  }
  return differing;
}

}  // namespace cairn::training
