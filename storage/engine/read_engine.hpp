// Reads the items of one rank's load plan. Reads only the byte ranges that are needed, in parallel
// across and within files, and checks them against block checksums. Each byte is read once, or
// twice with `verify_first`.
//
//   items ─> regions of files ─> tasks: neighbouring ranges of one file
//   task: read (into dense destinations directly, otherwise into a staging block) ─ check ─ copy
//         ─ commit
//
// With checks on, a task reads whole checksum blocks: at most one extra block at each end of a
// needed range. PyTorch's own files have no block checksums: with checks on, each of their tensors
// is read whole and checked against the CRC-32 in its archive.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <cairn/base/future.hpp>
#include <cairn/storage/engine/job.hpp>
#include <cairn/storage/engine/read_job.hpp>
#include <cairn/storage/engine/staging_ring.hpp>

namespace cairn {

struct ReadEngineOptions {
  unsigned threads = 2;
  std::uint64_t bytes_in_flight_max = 64u << 20;
};

// Runs one read at a time; otherwise thread-safe. Must not be destroyed in a callback of a future
// that it returned.
class ReadEngine {
 public:
  // Throws kInvalidArgument if `bytes_in_flight_max` is smaller than one checksum block.
  explicit ReadEngine(const ReadEngineOptions& options);

  // Throws kMismatch or kUnsupported if the plan asks for data that the checkpoint does not have or
  // cannot provide. The first error while reading fails the future, once the engine's threads have
  // stopped using plan, planner and destinations. Errors are kNotFound and kCorrupt with rank,
  // file, tensor and offset; kChanged if another save has replaced the checkpoint meanwhile; and
  // any exception of the planner.
  Future<bool> read(ReadRequest request);

  // Returns the blocks that `read` would need and that ranks can share, as ReadOffer::needs has
  // them. Throws as `read` does.
  std::vector<FileRange> needs(ReadRequest request);

  // Cancels the current read and waits until it has ended. May be called from any thread, including
  // in a callback of the future.
  void stop() noexcept { current_.stop(); }

 private:
  const ReadEngineOptions options_;
  std::shared_ptr<StagingRing> ring_;  // changes only while `current_` begins a job
  CurrentJob<ReadJob> current_;
};

}  // namespace cairn
