// The seam for randomness: incarnations, jitter, fault injection. Simulated worlds pass a seeded one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace cairn {

class Random {
 public:
  virtual ~Random() = default;
  virtual std::uint64_t next() = 0;
};

// From the operating system's entropy. Thread-safe.
std::unique_ptr<Random> system_random();
// The same numbers for the same seed. Not thread-safe.
std::unique_ptr<Random> seeded_random(std::uint64_t seed);

// `bits` (a multiple of 4) random bits as lower-case hexadecimal.
std::string random_hex(Random& random, int bits);

}  // namespace cairn
