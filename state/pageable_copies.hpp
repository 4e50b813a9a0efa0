// Copies out of devices' memory into memory that is not page-locked. Internal.
#pragma once

#include <vector>

#include <torch/types.h>

#include <cairn/state/device_copies.hpp>

namespace cairn {

struct PageableCopy {
  torch::Tensor from;  // bytes
  char* to = nullptr;
};

// Performs the copies in several threads, each through a small page-locked block of its own: a
// device writes to such blocks much faster than to other memory. The copies come after the work of
// `streams`.
void copy_through_blocks(const std::vector<PageableCopy>& copies, const CurrentStreams& streams, unsigned threads);

}  // namespace cairn
