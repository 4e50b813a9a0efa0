// Host memory that data pass through on their way between tensors and stores. Internal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cairn {

// One allocation, which may be page-locked later. Thread-safe.
class StagingMemory {
 public:
  static constexpr std::size_t kAlignmentBytes = 4096;

  // Throws kUnavailable if allocation fails.
  explicit StagingMemory(std::uint64_t bytes);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  bool is_locked() const { return state_ == State::kLocked; }
  // Page-locks the memory for copies from and to devices. The memory may be in use meanwhile. If
  // that is not possible, logs a warning once for the process, and does not try again. Must not be
  // called with a lock held.
  void lock() const noexcept;

 private:
  enum class State : std::uint8_t { kPlain, kLocking, kLocked, kRefused };

  const std::uint64_t bytes_;
  char* data_ = nullptr;
  mutable std::atomic<State> state_{State::kPlain};
};

}  // namespace cairn
