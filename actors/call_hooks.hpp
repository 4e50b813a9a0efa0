// The hooks of a save or a load, as the actors call them. state/call_hooks.hpp makes them of the
// caller's planner and of a writer or reader, whose headers say when each hook is called and what
// it may do. Internal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/base/failure.hpp>
#include <cairn/base/future.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/storage_context.hpp>

namespace cairn {

class SaveHooks {
 public:
  virtual ~SaveHooks() = default;
  // On every rank, one after the other. The result of one plan hook is the argument of the next.
  //
  // Throws kInvalidArgument if the writer cannot handle a checkpoint id that is not empty.
  virtual void reset(const std::string& checkpoint_id) = 0;
  virtual void set_up_planner(int rank, bool is_coordinator) = 0;
  virtual void set_up_storage_writer(const StorageContext& context) = 0;
  virtual SavePlan create_local_plan() = 0;
  virtual SavePlan prepare_local_plan(SavePlan plan) = 0;
  // On the coordinator. The arguments and the plans in the results are indexed by rank.
  virtual GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) = 0;
  virtual std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) = 0;
  // On the coordinator, before the two hooks above, in a save that compares no tensors. `of`
  // identifies the local plans. Returns whether these hooks would return `plans` again, which they
  // returned for the same local plans. If so, they are not called, and `finish` gets empty
  // metadata.
  virtual bool repeats(const std::string& /*of*/, const std::vector<std::shared_ptr<const SavePlan>>& /*plans*/) { return false; }
  // On every rank. `write_data` may return before the data are written: `plan` must stay valid
  // until the future is ready, or until `abandon` returns.
  virtual SavePlan finish_plan(SavePlan new_plan) = 0;
  virtual Future<WriteResults> write_data(const SavePlan& plan) = 0;
  // On the coordinator, once every rank has written: publishes the checkpoint.
  virtual void finish(Metadata metadata, std::vector<WriteResults> results) = 0;
  // After a failure: `committed` on any rank, the others on every rank, in this
  // order. Without an outcome, `discard` is not called. If the checkpoint may exist, it is called
  // only on the rank that ends the attempt.
  virtual Committed committed(const std::string& save_id) = 0;
  virtual void abandon() noexcept = 0;
  virtual void discard(bool ends_attempt) noexcept = 0;
};

class LoadHooks {
 public:
  virtual ~LoadHooks() = default;
  // On every rank, one after the other.
  //
  // Throws as SaveHooks::reset does.
  virtual void reset(const std::string& checkpoint_id) = 0;
  virtual Metadata read_metadata() = 0;
  // Adapts the state to what the checkpoint has, before the planner sees it.
  virtual void set_up_planner(const Metadata& metadata, const StorageContext& context) = 0;
  virtual void set_up_storage_reader(const Metadata& metadata, const StorageContext& context) = 0;
  // Also compares the stored values of destinations that share memory.
  virtual LoadPlan create_local_plan() = 0;
  virtual LoadPlan prepare_local_plan(LoadPlan plan) = 0;
  // Whether the two hooks below change no plan. Then each rank keeps its own, and they get and
  // return none. All ranks of a call must say the same.
  virtual bool keeps_local_plans() const { return false; }
  // On the coordinator, as with SaveHooks.
  virtual std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> all_plans) = 0;
  virtual std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) = 0;
  // On every rank. `plan` must stay valid until the future is ready; its value is always true.
  virtual LoadPlan finish_plan(LoadPlan central_plan) = 0;
  virtual Future<bool> read_data(const LoadPlan& plan) = 0;
  // On a rank that is told to stop while the future is pending.
  virtual void abandon() noexcept {}
};

}  // namespace cairn
