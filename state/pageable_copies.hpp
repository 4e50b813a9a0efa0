// Copies out of devices' memory into memory that is not page-locked. Internal.
#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include <cairn/state/device_copies.hpp>

namespace cairn {

struct PageableCopy {
  torch::Tensor from;  // bytes
  char* to = nullptr;
  std::shared_ptr<const GivenWork> after;  // of the device
};

// Performs the copies in several threads, each through a small page-locked block of its own: a
// device writes to such blocks much faster than to other memory.
void copy_through_blocks(const std::vector<PageableCopy>& copies, unsigned threads);

}  // namespace cairn
