// Runs ranks with real process groups between them: as threads of one process, or as the processes
// of cairn-launch if it started this binary.
#pragma once

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cairn/base/error.hpp>
#include <cairn/runtime/launch/tcp_store.hpp>
#include <cairn/runtime/testing/testing.hpp>
#include <cairn/tests/support/rank_device.hpp>
#include <cairn/training/hooked.hpp>
#include <cairn/training/process_group.hpp>

namespace cairn::testing {

namespace detail {

inline void run_rank(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout,
                     const std::function<void(const training::ProcessGroup&)>& body) {
  at::set_num_threads(1);
  rank_device() = device_of_rank(rank);
  const c10::DeviceGuard guard(rank_device());
  training::ProcessGroupOptions options;
  options.timeout = timeout;
  body(training::ProcessGroup::from_store(store, rank, size, options));
}

// Runs this process's rank. Processes beyond `size` skip the body, and all of them meet at a
// barrier.
inline void run_own_rank(int size, std::chrono::milliseconds timeout,
                         const std::function<void(const training::ProcessGroup&)>& body) {
  static unsigned runs = 0;
  const World& ranks = world();
  REQUIRE_MESSAGE(size <= ranks.size(), "this case needs more ranks");
  const auto store = c10::make_intrusive<c10d::PrefixStore>("on_ranks/" + std::to_string(runs++),
                                                            open_store(place_in_environment(), std::chrono::minutes(1)));
  if (ranks.rank() < size) run_rank(ranks.rank(), size, store, timeout, body);
  barrier();
}

}  // namespace detail

// Runs `body` on every rank, each with its device. If ranks throw, rethrows one exception: a rank's
// own failure comes before one that another rank caused (kUnavailable, kDeadline).
inline void on_ranks(int size, const std::function<void(const training::ProcessGroup&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  if (std::getenv("RANK") != nullptr) return detail::run_own_rank(size, timeout, body);
  // c10d of LibTorch 2.x records collectives in a process-wide map without a lock (FlightRecorder).
  // It expects one thread per process to use groups, so this turns the recorder off.
  static const int recorder_off = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  (void)recorder_off;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        detail::run_rank(rank, size, store, timeout, body);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::exception_ptr told;
  for (const auto& error : thrown) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const Error& failure) {
      if (failure.code() != ErrorCode::kUnavailable && failure.code() != ErrorCode::kDeadline) throw;
      told = error;
    }
  }
  if (told) std::rethrow_exception(told);
}

// Runs `work` from the same seed on every rank. LibTorch's random number generator belongs to the
// process, so only one rank at a time draws from it. `seeded` moves the result, a tensor or a
// module, to the rank's device.
inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

template <class Work>
auto seeded(std::uint64_t seed, Work&& work) -> decltype(work()) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return here(work());
}

// Activation checkpointing sets the generator's state during backward. Ranks that share a process
// must not do so, because another rank may be drawing.
inline training::ActivationCheckpointOptions of_own_generator() {
  training::ActivationCheckpointOptions options;
  options.preserve_rng_state = std::getenv("RANK") != nullptr;
  return options;
}

}  // namespace cairn::testing
