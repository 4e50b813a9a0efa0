// Makes new inputs of sound ones, the same for the same seed: what a fuzzer does without looking at the code it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn::testing {

class Mutator {
 public:
  // Inputs never grow beyond this.
  static constexpr std::size_t kInputBytesMax = 64 * 1024;

  explicit Mutator(std::vector<Bytes> seeds) : seeds_(std::move(seeds)) {}

  // One of the seeds, changed in one to sixteen places. Any number gives an input.
  Bytes input(std::uint64_t number) const;

 private:
  std::vector<Bytes> seeds_;
};

}  // namespace cairn::testing
