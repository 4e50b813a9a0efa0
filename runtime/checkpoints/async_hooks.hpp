// Wraps the writer of an asynchronous save: calls none of its hooks before the save's turn, which
// comes when earlier saves have ended. Counts the tensors that the writer uses. Internal.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/state/planner.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// Tracks whether a writer still uses tensors of a streamed state (StagingOptions::stream). The
// planner's `resolve_data` lends tensors to the writer, and this class counts them. Thread-safe.
class TensorLeases {
 public:
  // `on_returned` is called at most once, on any thread: when the writer has received all
  // tensors of the plan and released everything made from them, or when `end` reports that the
  // writer needs no more. It is not called after `disarm`.
  explicit TensorLeases(std::function<void()> on_returned);

  // Sets the finished plan, which must stay alive and unchanged while the writer runs.
  void expect(const SavePlan& plan);
  // Returns a view of `tensor`. The memory counts as lent while the view, or anything made from it,
  // lives. Throws kPrecondition if all tensors have already been returned, because the memory may
  // hold other data by then.
  torch::Tensor lend(const SavePlan& plan, const WriteItem& item, const torch::Tensor& tensor);
  void end();
  void disarm();

 private:
  struct Account;
  const std::shared_ptr<Account> account_;
};

// The actors reset a writer before they ask Stateful objects for their state. At that time an
// earlier save may still be using the writer. So `reset` only keeps the id, and `begin_turn` resets
// the writer, before the planner's first hook.
class AsyncWriter final : public StorageWriter {
 public:
  // `leases` must be set for a streamed state, and null otherwise.
  AsyncWriter(StorageWriter& writer, TensorLeases* leases) : writer_(writer), leases_(leases) {}

  void begin_turn() {
    had_turn_ = true;
    writer_.reset(checkpoint_id_);
  }
  void reset(const std::string& checkpoint_id) override { checkpoint_id_ = checkpoint_id; }
  void set_up_storage_writer(const StorageContext& context) override { writer_.set_up_storage_writer(context); }
  SavePlan prepare_local_plan(SavePlan plan) override { return writer_.prepare_local_plan(std::move(plan)); }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    return writer_.prepare_global_plan(std::move(plans));
  }
  bool repeats(const std::string& of, const std::vector<std::shared_ptr<const SavePlan>>& plans) override {
    return writer_.repeats(of, plans);
  }
  Future<WriteResults> write_data(const SavePlan& plan, SavePlanner& planner) override {
    if (leases_) leases_->expect(plan);
    auto future = writer_.write_data(plan, planner);
    // `leases` outlives the future: the save ends after its data is written.
    if (leases_ && future.valid()) future.on_ready([leases = leases_](const Future<WriteResults>&) { leases->end(); });
    return future;
  }
  void finish(Metadata metadata, std::vector<WriteResults> results) override {
    writer_.finish(std::move(metadata), std::move(results));
  }
  // Returns kNo before the save's turn, because nothing has been written until then.
  Committed committed(const std::string& save_id) override { return had_turn_ ? writer_.committed(save_id) : Committed::kNo; }
  void abandon() noexcept override {
    if (had_turn_) writer_.abandon();
  }
  void discard(bool ends_attempt) noexcept override {
    if (had_turn_) writer_.discard(ends_attempt);
  }
  bool validate_checkpoint_id(const std::string& checkpoint_id) const override {
    return writer_.validate_checkpoint_id(checkpoint_id);
  }

 private:
  StorageWriter& writer_;
  TensorLeases* const leases_;
  std::string checkpoint_id_;
  bool had_turn_ = false;
};

}  // namespace cairn
