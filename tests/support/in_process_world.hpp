// Runs one function on every rank of a world within this process, each rank on its own thread.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <cairn/runtime/worlds/world.hpp>

namespace cairn::testing {

// Rethrows the exception of the lowest rank that threw, after all ranks have ended.
inline void on_all_ranks(int world_size, const std::function<void(World&)>& body, const WorldOptions& options = {}) {
  std::vector<World> worlds = World::in_process(world_size, options);
  std::vector<std::exception_ptr> exceptions(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(worlds[rank]);
      } catch (...) {
        exceptions[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& exception : exceptions)
    if (exception) std::rethrow_exception(exception);
}

}  // namespace cairn::testing
