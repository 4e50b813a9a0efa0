// Interprets the options of a call. Finds the options that all ranks must share, and makes Cairn's
// own writers and readers. Internal.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/staging.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// The digest of the options that all ranks must share, which ranks compare before they plan, and a
// text for errors: one option a line, long values cut.
using SharedOptions = std::pair<Digest, std::string>;
SharedOptions shared_options(const SaveOptions& options);
SharedOptions shared_options(const LoadOptions& options, const std::vector<std::string>& prefixes);

// Throw kInvalidArgument. `is_own_part`: of a save with `use_collectives` off.
void check_step(const SaveOptions& options, bool is_own_part);
// Larger worlds check this in the call itself, so that no rank waits for one that never joins.
void check_coordinator(int coordinator_rank, int world_size);
template <class Storage>
void check_checkpoint_id(const Storage& storage, const std::string& checkpoint_id) {
  if (!storage.validate_checkpoint_id(checkpoint_id))
    throw Error(ErrorCode::kInvalidArgument, "'" + checkpoint_id +
                                                 "' is not a checkpoint id that the storage can handle: give a path " +
                                                 "or a URL of a registered scheme");
}

// A writer or reader. `fault` says why none can be made from its options, and `storage` is then one
// that is not used: `begin` of the call throws the fault after the hooks of Stateful objects, so
// that all ranks learn of it, and no rank waits in vain.
template <class Storage>
struct Made {
  std::shared_ptr<Storage> storage;
  std::exception_ptr fault;

  void check() const {
    if (fault) std::rethrow_exception(fault);
  }
};

// Return digests of the options of Cairn's own planner, writer and stager. These are kept between
// calls while their options stay the same, because they hold the last plan, threads and staging
// blocks.
Digest digest_of(const SavePlannerOptions& options);
Digest digest_of(const CheckpointWriterOptions& options);
Digest digest_of(const StagingOptions& options);

Made<StorageWriter> make_writer(const CheckpointWriterOptions& options);
Made<StorageReader> make_reader(const CheckpointReaderOptions& options);

}  // namespace cairn
