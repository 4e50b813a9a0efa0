#include <cairn/storage/engine/staging_memory.hpp>

#include <sys/mman.h>

#include <mutex>
#include <new>
#include <string>

#include <cairn/base/device_functions.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/log.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kHugePageBytes = 2u << 20;

std::align_val_t alignment_of(std::uint64_t bytes) {
  return std::align_val_t{bytes >= kHugePageBytes ? std::size_t{kHugePageBytes} : StagingMemory::kAlignmentBytes};
}

}  // namespace

StagingMemory::StagingMemory(std::uint64_t bytes)
    : bytes_(bytes), data_(static_cast<char*>(::operator new(bytes, alignment_of(bytes), std::nothrow))) {
  if (!data_)
    throw Error(ErrorCode::kUnavailable,
                "cannot get " + std::to_string(bytes) + " bytes of host memory to stage a state: release what other saves keep");
  // Large pages make the first copy into the memory, and page-locking, much faster.
  if (bytes >= kHugePageBytes) static_cast<void>(::madvise(data_, bytes, MADV_HUGEPAGE));
}

StagingMemory::~StagingMemory() {
  if (is_locked()) device_functions().unlock_memory(data_);
  ::operator delete(data_, alignment_of(bytes_));
}

void StagingMemory::lock() const noexcept {
  State plain = State::kPlain;
  if (!state_.compare_exchange_strong(plain, State::kLocking)) return;
  const bool done = device_functions().lock_memory(data_, bytes_);
  state_ = done ? State::kLocked : State::kRefused;
  if (done || !device_functions().has_devices()) return;
  // A copy into plain memory is slower, but it works.
  static std::once_flag said;
  std::call_once(said, [] {
    write_log(LogLevel::kWarning, -1, "page-locked memory is not to be had: copies out of devices' memory take longer");
  });
}

}  // namespace cairn
