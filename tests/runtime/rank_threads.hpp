// Calls of several ranks of one process, each on a thread of its own. Include a test framework
// header first.
#pragma once

#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {

// Runs `body` for each of these ranks. Returns what each threw.
inline std::vector<Thrown> on_threads(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  std::vector<Thrown> thrown(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) threads.emplace_back([&, i] { thrown[i] = thrown_by([&] { body(ranks[i]); }); });
  for (auto& thread : threads) thread.join();
  return thrown;
}

inline std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Runs `body` for each of these ranks, and checks that none threw.
inline void all_succeed(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  for (const Thrown& thrown : on_threads(ranks, body)) CHECK_MESSAGE(!thrown.is_error, thrown.what);
}
inline void all_succeed(int count, const std::function<void(int)>& body) { all_succeed(first_ranks(count), body); }

}  // namespace cairn::testing
