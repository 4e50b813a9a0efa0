// Reads the items of one rank's load plan: exactly the byte ranges that are needed, each byte once, in parallel over files and
// within them, checked against the checksums of their blocks.
//
//   items ─> regions of files ─> tasks: neighbouring ranges of one file
//   task: read (into the destinations where these are dense, else into a staging block) ─ check ─ copy ─ commit
//
// With checking on, a task reads whole checksum blocks: at most one more than needed at each end of what it needs. Items of
// PyTorch's own files, which have no checksums of blocks, are read and checked archive by archive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/base/future.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/engine/current_job.hpp>
#include <cairn/storage/engine/staging_ring.hpp>
#include <cairn/storage/engine/worker_pool.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

struct ReadRequest {
  std::shared_ptr<Store> store;
  std::shared_ptr<const Metadata> metadata;
  const LoadPlan* plan = nullptr;  // this and the planner: valid until the future is ready
  LoadPlanner* planner = nullptr;
  int rank = 0;               // for error texts
  bool verify = true;         // check what is read
  bool verify_first = false;  // check all that will be read before anything is changed
};

struct ReadEngineOptions {
  unsigned threads = 2;
  std::uint64_t bytes_in_flight_max = 64u << 20;
};

class ReadJob;

// One read at a time; thread-safe otherwise. Must not be destroyed in a callback of a future that it returned.
class ReadEngine {
 public:
  // Throws kInvalidArgument if not even one checksum block fits into `bytes_in_flight_max`.
  explicit ReadEngine(const ReadEngineOptions& options);
  ~ReadEngine();

  // Throws kMismatch, kUnsupported for a plan that asks for what the checkpoint does not have or cannot give. The first error while
  // reading fails the future, once no thread of the engine touches plan, planner or destinations any more: kNotFound, kCorrupt with
  // rank, file, tensor and offset; kChanged if another save replaced the checkpoint meanwhile; whatever the planner throws.
  Future<bool> read(ReadRequest request);

  // Ends what is under way as cancelled, and waits until it has ended. May be called from any thread, also in a callback of the
  // future.
  void stop() noexcept;

 private:
  StagingRing ring_;
  CurrentJob<ReadJob> current_;
  WorkerPool pool_;  // last: its threads end before what they use
};

}  // namespace cairn
