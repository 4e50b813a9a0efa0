// Interprets the options of a call. Finds the options that all ranks must share, and makes Cairn's
// own writers and readers. With `use_collectives` off, each rank keeps its own part of a
// checkpoint, through the same code as a world of one rank. Internal.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/worlds/world.hpp>
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

// --- parts of ranks: use_collectives off ---------------------------------------------------------

// Returns the location of this rank's part of a checkpoint; "" if `checkpoint_id` is "".
std::string place_of_part(const std::string& checkpoint_id, const World& world);

// Checks, before a load, that the part `place` exists. Throws kMismatch if its parent place has a
// checkpoint of all ranks, or only parts of a world of another size. Throws kNotFound if only other
// ranks of this world have parts there. If there are no parts at all, leaves the error to the load.
void require_part(const std::string& place);

// Makes Cairn's own planner for the part of `rank`.
std::shared_ptr<SavePlanner> make_part_save_planner(const SavePlannerOptions& options, int rank);

// Return the options with which a world of this rank alone saves or loads the part. Throw
// kInvalidArgument if a user-defined planner, writer or reader is set.
SaveOptions options_of_part(SaveOptions options, const std::string& checkpoint_id, const World& world);
LoadOptions options_of_part(LoadOptions options, const World& world);

}  // namespace cairn
