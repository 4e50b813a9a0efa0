// The interface between a save or load and the bytes in a store. Modelled on DCP's StorageWriter
// and StorageReader: the same phases, in the same order. A user may replace either class.
//
// Threads: hooks run one at a time on the thread that called `save` or `load`; an asynchronous save
// has a thread of its own. If a hook throws, or a future that it returned fails, the attempt fails
// on all ranks. The failure map of every rank then names this rank, the exception's type and its
// text. A writer or reader serves one attempt at a time and can be reused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/failure.hpp>
#include <cairn/base/future.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/storage_context.hpp>

namespace cairn {

class StorageWriter {
 public:
  virtual ~StorageWriter() = default;

  // Begins a new attempt. Called on every rank, before all hooks but `validate_checkpoint_id`.
  virtual void reset(const std::string& checkpoint_id) = 0;
  // Sets up the writer for the attempt. Called on every rank, before any plan is made.
  virtual void set_up_storage_writer(const StorageContext& context) = 0;
  // Returns the rank's own plan, possibly changed. Called on every rank.
  virtual SavePlan prepare_local_plan(SavePlan plan) = 0;
  // Returns the plans of all ranks, possibly changed. Called on the coordinator. `plans[r]` is the
  // plan of rank r.
  virtual std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) = 0;
  // For Cairn's own writer, in saves that Cairn's planner plans: returns whether `plans`, which the
  // last `prepare_global_plan` returned, are the result of this save as well. `of` identifies what
  // they follow from. If so, that hook is not called, and `finish` gets empty metadata.
  virtual bool repeats(const std::string& /*of*/, const std::vector<std::shared_ptr<const SavePlan>>& /*plans*/) { return false; }
  // Writes all items of `plan`, resolving each through `planner`. Called on every rank. May write
  // synchronously and return `ready_future`. Both arguments stay valid until the future is ready,
  // or, if `write_data` throws, until `abandon` returns.
  virtual Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) = 0;
  // Publishes the checkpoint. Called on the coordinator after every rank has written. `results[r]`
  // are the results of rank r.
  virtual void finish(Metadata metadata, std::vector<WriteResults> results) = 0;

  // Returns whether the checkpoint of `save_id` exists. Called on any rank after a failure.
  virtual Committed committed(const std::string& /*save_id*/) { return Committed::kUnknown; }
  // Stops writing. Called on every rank, at most once, when the attempt ends without being
  // committed. Must not throw. Never called while `write_data` runs. If another rank fails or the
  // save is cancelled, `abandon` may be called while the future that `write_data` returned is still
  // pending. That future must then become ready soon, with results or an exception. An exception
  // with kCancelled does not count as a failure of this rank, because the rank was told to stop. No
  // other hook is called until the future is ready.
  virtual void abandon() noexcept {}
  // Removes the files that this rank wrote. Called on every rank after `abandon`, at most once,
  // when the checkpoint does not exist and never will. `ends_attempt` is true on one rank only: the
  // coordinator, or the rank that has taken over from it. This rank also ends the attempt in the
  // store (see store.hpp). On that rank, `discard` is called even if the outcome is unknown.
  // `discard` must then find out whether the checkpoint exists before it removes anything. Must not
  // throw.
  virtual void discard(bool /*ends_attempt*/) noexcept {}
  // Returns whether this writer can handle `checkpoint_id`. Called before all other hooks.
  virtual bool validate_checkpoint_id(const std::string& checkpoint_id) const { return !checkpoint_id.empty(); }
  // Returns the size in bytes of the host memory for copies of tensors, in use or kept for reuse.
  // May be called from any thread at any time.
  virtual std::uint64_t staging_bytes() const { return 0; }
  // Allocates staging memory for `bytes` of tensor data, up to the writer's limits. Called between
  // saves.
  virtual void prepare_staging(std::uint64_t /*bytes*/) {}
  // Frees the memory kept between saves, once no save uses it. May be called at any time.
  virtual void release_staging() noexcept {}
};

class StorageReader {
 public:
  virtual ~StorageReader() = default;

  // Begins a new attempt. Called on every rank, before all hooks but `validate_checkpoint_id`.
  virtual void reset(const std::string& checkpoint_id) = 0;
  // Reads the metadata of the checkpoint. Called on every rank.
  virtual Metadata read_metadata() = 0;
  // Sets up the reader with the metadata that `read_metadata` returned on the same rank. It stays
  // alive and unchanged until the attempt ends.
  virtual void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) = 0;
  // Returns the rank's own plan, possibly changed. Called on every rank.
  virtual LoadPlan prepare_local_plan(LoadPlan plan) { return plan; }
  // Returns the plans of all ranks, possibly changed. Called on the coordinator. `plans[r]` is the
  // plan of rank r.
  virtual std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) { return plans; }
  // Reads all items of `plan` into the destinations that `planner` resolves. Called on every rank.
  // Both arguments stay valid until the future is ready. The future's value is always true. After
  // `read_data` has thrown, nothing may use the arguments or the destinations. If tensors to fill
  // use the same memory, this hook is also called before `prepare_local_plan`, with a plan of the
  // values to compare (LoadPlanner::compare_shared). If the state has optimizers, it and
  // `set_up_storage_reader` are also called before the planner's hooks, with a planner of Cairn's
  // that takes the optimizers' plain values.
  virtual Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) = 0;
  // Stops reading, because another rank has failed or the load is cancelled. Called at most once,
  // and never while `read_data` runs. A future that it returned must then become ready soon. An
  // exception with kCancelled does not count as a failure of this rank. Must not throw.
  virtual void abandon() noexcept {}
  virtual bool validate_checkpoint_id(const std::string& checkpoint_id) const { return !checkpoint_id.empty(); }
};

}  // namespace cairn
