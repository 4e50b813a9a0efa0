// Interprets the options of a call. Finds the options that all ranks must share, and makes Cairn's
// own planners, writers and readers. Internal.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/checkpoint_writer.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// Return a digest of the options that all ranks must share. Ranks compare digests before they plan.
Digest digest_of(const SaveOptions& options);
Digest digest_of(const LoadOptions& options, const std::vector<std::string>& prefixes);

// Cairn's own planner and writer. They are kept between calls while the options stay the same,
// because they hold the last plan, threads and staging blocks.
class OwnSaveParts {
 public:
  // `part_rank`: the rank whose own part is saved, if only that is. An object serves one rank.
  std::shared_ptr<SavePlanner> planner_for(const SavePlannerOptions& options, std::optional<int> part_rank);
  // Returns a writer for these options. If it cannot be made from them, returns one whose first
  // hook throws the error. All ranks then learn of the error, and no rank waits in vain. A writer
  // whose threads have another priority is not reused.
  std::shared_ptr<StorageWriter> writer_for(const CheckpointWriterOptions& options, bool low_priority);
  void release() noexcept {
    if (writer_) writer_->release_staging();
  }

 private:
  std::shared_ptr<SavePlanner> planner_;
  Digest planner_options_{};
  std::shared_ptr<StorageWriter> writer_;
  Digest writer_options_{};
};

// Makes a reader. Reports invalid options as `writer_for` does.
std::shared_ptr<StorageReader> make_reader(const CheckpointReaderOptions& options);

}  // namespace cairn
