// The interface for random numbers. Cairn draws secrets, incarnations (the ids of worlds) and the
// jitter of delays from it. Tests use a seeded generator.
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

// Returns a generator that draws from the operating system's entropy. Thread-safe.
std::unique_ptr<Random> system_random();
// Returns a generator that yields the same numbers for the same seed. Not thread-safe.
std::unique_ptr<Random> seeded_random(std::uint64_t seed);

// Returns `bits` random bits as lower-case hexadecimal. Throws kInvalidArgument unless `bits` is a
// multiple of 4 and not negative.
std::string random_hex(Random& random, int bits);

}  // namespace cairn
