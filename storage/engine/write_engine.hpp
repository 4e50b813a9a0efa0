// Writes the files of one rank. Tensors are copied into staging blocks, checksummed while they are
// in the CPU cache, and written. Several blocks and several files are in progress at once.
//
//   plan item ─ resolve ─> tensor ─ copy ─> staging block ─ checksum ─> ObjectWriter::write_at
//
// Blocks are assigned in the order of the files and of the plan. A thread stays with one file as
// long as it finds work there. The tail of a file is everything after its last block that is full
// of tensors: the rest of the tensors, the bytes objects and the trailer. One thread writes the
// tail from front to back after all full blocks are checksummed. The tensors in the tail are copied
// earlier. With compression or other transforms, tensors are copied and compressed in parts, which
// are appended to their file in order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <cairn/base/future.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/engine/job.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/engine/write_job.hpp>

namespace cairn {

struct WriteEngineOptions {
  unsigned threads = 2;
  std::uint64_t bytes_in_flight_max = 64u << 20;
  std::uint64_t block_bytes = 4u << 20;
  ItemChanges changes = {};
};

// Runs one write at a time; otherwise thread-safe. Must not be destroyed in a callback of a future
// that it returned.
class WriteEngine {
 public:
  // A block has `block_bytes` bytes, but at most `bytes_in_flight_max` (half of it if items are
  // compressed or transformed), rounded down to whole checksum blocks. Throws kInvalidArgument if
  // that is less than one checksum block, or if the zstd level is out of range. Throws kUnsupported
  // for a zstd level in a build without compression. Uses larger blocks for a store that takes
  // objects in parts, up to 16 MiB if each thread has memory for two. The first write to such a
  // store replaces the allocated blocks.
  explicit WriteEngine(const WriteEngineOptions& options);

  // Returns the results, one per file, in order. The future fails with the first error, whose type
  // is kept. By then the engine's threads no longer use plan, planner or tensors, and everything
  // written has been discarded. Throws kInvalidArgument if the store needs larger blocks than the
  // constructor's limit.
  Future<std::vector<FileResult>> write(WriteRequest request);

  // Returns the bytes of staging blocks, in use or kept.
  std::uint64_t staging_bytes() const { return ring()->bytes_allocated(); }
  // Allocates staging blocks in advance for `bytes` of tensor data, up to `bytes_in_flight_max`.
  // Throws kUnavailable.
  void prepare(std::uint64_t bytes) { ring()->reserve(bytes); }
  // Frees the staging blocks kept between writes, once they are not in use.
  void release() noexcept { ring()->give_back(); }

  // Cancels the current write and waits until it has ended. May be called from any thread,
  // including in a callback of the future.
  void stop() noexcept { current_.stop(); }

 private:
  std::shared_ptr<StagingRing> ring() const {
    MutexLock lock(mutex_);
    return ring_;
  }
  std::shared_ptr<StagingRing> ring_for(const WriteRequest& request);

  const std::uint64_t bytes_in_flight_max_;
  const std::size_t block_bytes_;  // for stores that take writes of any size
  const ItemChanges changes_;
  mutable Mutex mutex_;
  std::shared_ptr<StagingRing> ring_ CAIRN_GUARDED_BY(mutex_);
  CurrentJob<WriteJob> current_;
};

}  // namespace cairn
