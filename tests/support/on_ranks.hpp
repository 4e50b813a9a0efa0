// Ranks with real process groups between them: threads of one process, or the processes of cairn-launch, in which the binary runs.
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
#include <cairn/runtime/rendezvous.hpp>
#include <cairn/runtime/testing.hpp>
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

// As one of the processes, of which those that are one too many have nothing to do. They go on together.
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

// Runs `body` on each rank, each with its device. Throws what a rank threw; where several did, what a rank found by itself comes before what it was told.
inline void on_ranks(int size, const std::function<void(const training::ProcessGroup&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  if (std::getenv("RANK") != nullptr) return detail::run_own_rank(size, timeout, body);
  // c10d of LibTorch 2.x records collectives in a map of the process that no lock guards (FlightRecorder): one thread may use groups at a
  // time, as one rank does.
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

// LibTorch's generator is the process's: what draws from it does so alone, from the same seed on all ranks. The result, a tensor or a
// module, is moved to the rank's device.
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

// Activation checkpointing sets the generator's state in backward: not while another rank draws in the same process.
inline training::ActivationCheckpointOptions of_own_generator() {
  training::ActivationCheckpointOptions options;
  options.preserve_rng_state = std::getenv("RANK") != nullptr;
  return options;
}

}  // namespace cairn::testing
