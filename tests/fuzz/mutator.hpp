// Makes new inputs from sound ones, deterministically. This is fuzzing without coverage feedback.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn::testing {

class Mutator {
 public:
  // The largest size of an input.
  static constexpr std::size_t kInputBytesMax = 64 * 1024;

  explicit Mutator(std::vector<Bytes> seeds) : seeds_(std::move(seeds)) {}

  // Returns one of the seeds, changed in one to sixteen places. Every `number` gives an input.
  Bytes input(std::uint64_t number) const;

 private:
  std::vector<Bytes> seeds_;
};

}  // namespace cairn::testing
