// How items reach a store and come back: the writer and reader of one save or load. After DCP's StorageWriter and StorageReader:
// every phase, in DCP's order; both may be replaced.
//
// Threads: hooks run on the thread that called `save` or `load` (asynchronous saves: a thread of the save's own), one after the
// other. Throwing from any hook, or failing the returned future, fails the attempt on all ranks, with this rank, the exception's
// type and its text in every rank's failure map. An object serves one attempt at a time and may be used again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/failure.hpp>
#include <cairn/base/future.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/state/planner.hpp>

namespace cairn {

class StoreObserver;

// What a writer or reader is told when it is set up.
struct StorageContext {
  std::string checkpoint_id;  // as passed to `save` or `load`
  std::string save_id;        // of this attempt ("" when loading): unique for ever, safe in file names
  int rank = 0;
  int world_size = 1;
  bool is_coordinator = true;
  bool one_process = false;          // all ranks live in this process: then they share even a store that other processes cannot see
  std::optional<std::int64_t> step;  // the trainer's iteration, if given
  std::map<std::string, std::string> user_metadata;  // the same on all ranks
  // For traces: is to see the operations of stores (storage/store_observer.hpp). May be null.
  std::shared_ptr<StoreObserver> store_observer;
};

class StorageWriter {
 public:
  virtual ~StorageWriter() = default;

  // On every rank, first: a new attempt begins.
  virtual void reset(const std::string& checkpoint_id) = 0;
  // On every rank, before any plan is made.
  virtual void set_up_storage_writer(const StorageContext& context) = 0;
  // On every rank: may change its own plan.
  virtual SavePlan prepare_local_plan(SavePlan plan) = 0;
  // On the coordinator: may change everybody's plan; index = rank.
  virtual std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) = 0;
  // On every rank: writes all items of `plan`, resolving each through `planner`. Synchronous (return `ready_future`) or not.
  // Both arguments stay valid until the future is ready.
  virtual Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) = 0;
  // On the coordinator, when every rank has written: makes the checkpoint exist. `results[r]` is rank r's.
  virtual void finish(Metadata metadata, std::vector<WriteResults> results) = 0;

  // On any rank, after a failure: whether the checkpoint of `save_id` exists.
  virtual Committed committed(const std::string& /*save_id*/) { return Committed::kUnknown; }
  // On every rank, at most once, when the attempt ends without being committed: stops writing. Must not throw.
  // May run while the future of `write_data` is pending, after `write_data` itself has returned: another rank has failed, or the call
  // was cancelled. That future must become ready all the same, and soon, with results or with an exception: of these, kCancelled says
  // that it was told to stop, and is no failure of this rank. Nothing else is called before it is ready.
  virtual void abandon() noexcept {}
  // On every rank, after `abandon`, at most once, when the outcome says that the checkpoint does not exist and never will:
  // removes what this rank has written. `ends_attempt` is true on one rank, the coordinator or its successor, which also closes
  // the attempt in the store. There the outcome may be unknown: then this call finds out whether the checkpoint exists before it
  // removes anything. Must not throw.
  virtual void discard(bool /*ends_attempt*/) noexcept {}
  // Whether `checkpoint_id` is one that this writer can handle; asked before anything else.
  virtual bool validate_checkpoint_id(const std::string& checkpoint_id) const { return !checkpoint_id.empty(); }
  // Host memory in which it holds what it has copied of tensors, in use and kept. On any thread, at any time.
  virtual std::uint64_t staging_bytes() const { return 0; }
  // Between saves: so many bytes of tensors will be written; gets the memory for that, as far as its bounds go.
  virtual void prepare_staging(std::uint64_t /*bytes*/) {}
  // At any time: gives back such memory as it keeps between saves, once no save uses it.
  virtual void release_staging() noexcept {}
};

class StorageReader {
 public:
  virtual ~StorageReader() = default;

  // On every rank, first.
  virtual void reset(const std::string& checkpoint_id) = 0;
  // On every rank.
  virtual Metadata read_metadata() = 0;
  // On every rank, with what `read_metadata` returned there.
  virtual void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) = 0;
  // On every rank.
  virtual LoadPlan prepare_local_plan(LoadPlan plan) = 0;
  // On the coordinator.
  virtual std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) = 0;
  // On every rank: reads all items of `plan` into what `planner` resolves. Both stay valid until the future is ready; `bool` is
  // always true.
  virtual Future<bool> read_data(const LoadPlan& plan, LoadPlanner& planner) = 0;
  virtual bool validate_checkpoint_id(const std::string& checkpoint_id) const { return !checkpoint_id.empty(); }
};

}  // namespace cairn
