// What the options of a call mean to Cairn: what all ranks must share of them, and Cairn's own planners, writers and readers made of
// them. Internal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/runtime/checkpointer.hpp>

namespace cairn {

// Options that all ranks must share, in one digest: a disagreement is found before anything is planned.
Digest digest_of(const SaveOptions& options);
Digest digest_of(const LoadOptions& options, const std::vector<std::string>& prefixes);

// Cairn's own, kept between calls for their memory of the last plan, their threads and staging blocks, as long as the options agree.
class OwnSaveParts {
 public:
  std::shared_ptr<SavePlanner> planner_for(const SavePlannerOptions& options);
  // One that cannot be made of its options says so in its first hook: so every rank hears it, and none waits for one that never came.
  // Its threads have the priority of the one that they are first needed by.
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

// As `writer_for`.
std::shared_ptr<StorageReader> make_reader(const CheckpointReaderOptions& options);

}  // namespace cairn
