// Writes the files of one rank: tensors are copied into staging blocks, checksummed while they are in the cache, and written, with
// several blocks and several files under way at once.
//
//   item of the plan ─ resolve ─> tensor ─ copy ─> staging block ─ checksum ─> ObjectWriter::write_at
//
// Blocks are dealt out in the order of the files and of the plan. A file's blocks are filled side by side; the block that holds the
// end of an archive waits, off the threads, until the checksum of that archive's payload is known. What comes after the last whole
// block of tensors (their remainder, bytes objects, trailer) is written by one thread from front to back, once all whole blocks are
// checksummed; the remainder of the tensors is copied before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/future.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/engine/current_job.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/engine/worker_pool.hpp>
#include <cairn/storage/format/file_layout.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct WriteFile {
  ObjectName name;
  FileLayout layout;
};

struct WriteRequest {
  std::shared_ptr<Store> store;
  const SavePlan* plan = nullptr;  // this and the planner: valid until the future is ready
  SavePlanner* planner = nullptr;
  std::vector<WriteFile> files;  // of items of `plan`
  std::string save_id;
  int rank = 0;
  bool sync = true;         // survive power loss
  bool direct = true;       // bypass the page cache where the store can
  bool copy_first = false;  // fill all staging blocks that there are before any is written
  bool low_priority = false;  // of the writing threads, from now on
};

struct WriteEngineOptions {
  unsigned threads = 2;
  std::uint64_t bytes_in_flight_max = 64u << 20;
  std::uint64_t block_bytes = 4u << 20;
};

class WriteJob;

// One write at a time; thread-safe otherwise. Must not be destroyed in a callback of a future that it returned.
class WriteEngine {
 public:
  // `block_bytes` is rounded down to whole checksum blocks, and so that one fits in `bytes_in_flight_max`. Throws kInvalidArgument
  // if not even one checksum block fits.
  explicit WriteEngine(const WriteEngineOptions& options);
  ~WriteEngine();

  // The results, one per file, in order. If anything fails, the first error fails the future, with its own type, once no thread of
  // the engine touches plan, planner or tensors any more and everything written has been discarded.
  Future<std::vector<FileResult>> write(WriteRequest request);

  // Of staging blocks, in use or kept.
  std::uint64_t staging_bytes() const { return ring_.bytes_allocated(); }
  // Gets staging blocks ahead for so many bytes of tensors, as far as `bytes_in_flight_max` goes. Throws std::bad_alloc.
  void prepare(std::uint64_t bytes) { ring_.reserve(bytes); }
  // Frees what is kept of them between writes, once it is not in use.
  void release() noexcept { ring_.give_back(); }

  // Ends what is under way as cancelled, and waits until it has ended. May be called from any thread, also in a callback of the
  // future.
  void stop() noexcept;

 private:
  StagingRing ring_;
  CurrentJob<WriteJob> current_;
  WorkerPool pool_;  // last: its threads end before what they use
};

}  // namespace cairn
