// Checks every byte of a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cairn/base/cpu_share.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// One thing in a checkpoint that is wrong or that cannot be checked.
struct VerifyFault {
  std::string object;        // file name relative to the checkpoint
  std::uint64_t offset = 0;  // bytes; of the first damaged block
  std::string fqn;           // the tensor or value at that offset; "" if none
  std::string what;
  // True: nothing is known to be wrong, but this version of Cairn cannot check it. Examples are
  // unknown transforms and records of a newer format.
  bool unchecked = false;
};

// Reads every byte of the commit record, of Cairn's data files, and of the archives in PyTorch's
// data files. Returns all faults found, then everything that cannot be checked. An empty result
// means no fault. Calls `progress` with the bytes done and the total. Throws kNotFound if there is
// no checkpoint.
std::vector<VerifyFault> verify_checkpoint(Store& store, unsigned threads = cpu_share(),
                                           const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace cairn
