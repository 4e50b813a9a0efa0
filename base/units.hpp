// Formats sizes and durations for messages.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cairn {

std::string human_bytes(std::uint64_t bytes);                   // "12 B", "1.5 KiB", "2.0 GiB"
std::string human_duration(std::chrono::nanoseconds duration);  // "1.25 s", "3.1 ms", "12 us"

}  // namespace cairn
