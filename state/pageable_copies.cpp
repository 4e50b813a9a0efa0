#include <cairn/state/pageable_copies.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>

#include <torch/torch.h>

#include <cairn/base/mutex.hpp>
#include <cairn/state/staging_memory.hpp>

namespace cairn {

void copy_through_blocks(const std::vector<PageableCopy>& copies, const CurrentStreams& streams, unsigned threads) {
  constexpr std::int64_t kBlockBytes = 4 << 20;
  struct Part {
    torch::Tensor from;
    char* to;
  };
  std::vector<Part> parts;
  for (const PageableCopy& copy : copies)
    for (std::int64_t at = 0; at < copy.from.numel(); at += kBlockBytes)
      parts.push_back({copy.from.narrow(0, at, std::min(kBlockBytes, copy.from.numel() - at)), copy.to + at});
  std::atomic<std::size_t> next{0};
  Mutex mutex;  // guards `error`; local variables cannot be annotated
  std::exception_ptr error;
  const auto work = [&] {
    try {
      const torch::NoGradGuard no_grad;
      const CurrentStreams::Scope scope(streams);
      const auto memory = make_staging_memory(static_cast<std::uint64_t>(kBlockBytes), true);
      for (std::size_t i = next++; i < parts.size(); i = next++) {
        const std::int64_t bytes = parts[i].from.numel();
        torch::from_blob(memory->data(), {bytes}, torch::kUInt8).copy_(parts[i].from);
        std::memcpy(parts[i].to, memory->data(), static_cast<std::size_t>(bytes));
      }
    } catch (...) {
      next = parts.size();
      MutexLock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < std::min<std::size_t>(threads, parts.size())) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: fewer do the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace cairn
