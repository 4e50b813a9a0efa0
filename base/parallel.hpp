// Work that several threads share and the caller waits for.
#pragma once

#include <cstddef>
#include <functional>

namespace cairn {

// Calls `task(0)` … `task(count - 1)` on up to `threads` threads, including the caller's. After an
// exception no further task begins; the first exception is thrown when all tasks have ended.
void for_each_in_parallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& task);

}  // namespace cairn
