#include <cairn/state/pageable_copies.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include <torch/torch.h>

#include <cairn/base/parallel.hpp>
#include <cairn/storage/engine/staging_memory.hpp>

namespace cairn {

void copy_through_blocks(const std::vector<PageableCopy>& copies, unsigned threads) {
  constexpr std::int64_t kBlockBytes = 4 << 20;
  std::vector<PageableCopy> parts;
  for (const PageableCopy& copy : copies)
    for (std::int64_t at = 0; at < copy.from.numel(); at += kBlockBytes)
      parts.push_back({copy.from.narrow(0, at, std::min(kBlockBytes, copy.from.numel() - at)), copy.to + at, copy.after});
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  threads = static_cast<unsigned>(std::min<std::size_t>(threads, parts.size()));
  for_each_in_parallel(threads, threads, [&](std::size_t) {
    const torch::NoGradGuard no_grad;
    const StagingMemory memory(static_cast<std::uint64_t>(kBlockBytes));
    memory.lock();
    try {
      for (std::size_t i = next++; i < parts.size() && !failed; i = next++) {
        const std::int64_t bytes = parts[i].from.numel();
        OwnStream stream(parts[i].from.device(), *parts[i].after);
        torch::from_blob(memory.data(), {bytes}, torch::kUInt8).copy_(parts[i].from);
        std::memcpy(parts[i].to, memory.data(), static_cast<std::size_t>(bytes));
      }
    } catch (...) {
      failed = true;
      throw;
    }
  });
}

}  // namespace cairn
