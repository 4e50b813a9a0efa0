// What stands between the actors and the planner and writer of an asynchronous save: it hands the planner the staged state, keeps hooks
// from the writer until it is the save's turn, and counts how far the save has come. Internal.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/runtime/async_save.hpp>
#include <cairn/runtime/tensor_leases.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/storage/storage.hpp>

namespace cairn {

// How far the part of this rank is. Written by hooks, read by whoever asks.
struct SaveCounts {
  std::atomic<SaveProgress::Step> step{SaveProgress::Step::kPlanning};  // one of those between staging and the end
  std::atomic<std::uint64_t> items{0};
  std::atomic<std::uint64_t> items_done{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<MonotonicTime::rep> writing_since{0};  // of the system clock
};

// The actors reset a writer before Stateful objects are asked, when an earlier save may still be using it: it is reset by
// `begin_turn` instead, before the planner's first hook.
class AsyncWriter final : public StorageWriter {
 public:
  // `leases`: of a state that is streamed, or null.
  AsyncWriter(StorageWriter& writer, SaveCounts& counts, TensorLeases* leases)
      : writer_(writer), counts_(counts), leases_(leases) {}

  void begin_turn();
  void reset(const std::string& checkpoint_id) override { checkpoint_id_ = checkpoint_id; }
  void set_up_storage_writer(const StorageContext& context) override { writer_.set_up_storage_writer(context); }
  SavePlan prepare_local_plan(SavePlan plan) override { return writer_.prepare_local_plan(std::move(plan)); }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    return writer_.prepare_global_plan(std::move(plans));
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override;
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    writer_.finish(std::move(metadata), std::move(results));
  }
  // Without a turn this rank has written nothing, and so nothing is published.
  Committed committed(const std::string& save_id) override { return had_turn_ ? writer_.committed(save_id) : Committed::kNo; }
  void abandon() noexcept override {
    if (had_turn_) writer_.abandon();
  }
  bool validate_checkpoint_id(const std::string& checkpoint_id) const override {
    return writer_.validate_checkpoint_id(checkpoint_id);
  }

 private:
  StorageWriter& writer_;
  SaveCounts& counts_;
  TensorLeases* const leases_;
  std::string checkpoint_id_;
  bool had_turn_ = false;
};

class AsyncPlanner final : public SavePlanner {
 public:
  // `staged`: gives the state to be saved, when the turn has come; throws what staging has thrown.
  AsyncPlanner(SavePlanner& planner, AsyncWriter& writer, std::function<const StateDict&()> staged, SaveCounts& counts,
               TensorLeases* leases)
      : planner_(planner), writer_(writer), staged_(std::move(staged)), counts_(counts), leases_(leases) {}

  void set_up_planner(const StateDict&, int rank, bool is_coordinator) override {
    const StateDict& state = staged_();
    writer_.begin_turn();
    planner_.set_up_planner(state, rank, is_coordinator);
  }
  SavePlan create_local_plan() override { return planner_.create_local_plan(); }
  GlobalSavePlan create_global_plan(std::vector<SavePlan> all_plans) override {
    return planner_.create_global_plan(std::move(all_plans));
  }
  SavePlan finish_plan(SavePlan new_plan) override;
  ResolvedData resolve_data(const SavePlan& plan, const WriteItem& item) override;

 private:
  SavePlanner& planner_;
  AsyncWriter& writer_;
  const std::function<const StateDict&()> staged_;
  SaveCounts& counts_;
  TensorLeases* const leases_;
};

}  // namespace cairn
