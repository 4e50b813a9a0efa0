// Work that several threads share and the caller waits for.
#pragma once

#include <cstddef>
#include <functional>

namespace cairn {

// Calls `task(0)` … `task(count - 1)` on up to `threads` threads, including the caller's. After an
// exception no further task begins. When all tasks have ended, throws what the first of them in
// this order has thrown, as a loop would.
void for_each_in_parallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& task);

}  // namespace cairn
