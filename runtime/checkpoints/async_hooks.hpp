// Wraps the writer of an asynchronous save: calls none of its hooks before the save's turn, which
// comes when earlier saves have ended. Counts the tensors that the writer uses. Internal.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>
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
  explicit TensorLeases(std::function<void()> on_returned) : account_(std::make_shared<Account>(std::move(on_returned))) {}

  // Sets the finished plan, which must stay alive and unchanged while the writer runs.
  void expect(const SavePlan& plan) {
    MutexLock lock(account_->mutex);
    account_->awaits.resize(plan.items.size());
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      if (plan.items[i].type == WriteItemType::kByteIO || plan.items[i].chunk.empty()) continue;
      account_->awaits[i] = true;
      ++account_->awaited;
    }
    account_->expected = true;
    account_->tell_if_returned();
  }

  // Returns a view of `tensor`. The memory counts as lent while the view, or anything made from it,
  // lives. Throws kPrecondition if all tensors have already been returned, because the memory may
  // hold other data by then.
  torch::Tensor lend(const SavePlan& plan, const WriteItem& item, const torch::Tensor& tensor) {
    if (tensor.numel() == 0) return tensor;  // there is nothing that the trainer could change
    {
      MutexLock lock(account_->mutex);
      if (account_->returned)
        throw Error(ErrorCode::kPrecondition,
                    "the writer asked for \"" + plan.names[item.name] +
                        "\" once more, after it had let go of all tensors of a state that is streamed: the "
                        "trainer may have changed it; ask for each item once, or hold the tensor");
      ++account_->lent;
      // An item that is not in the plan is not counted: the writer's end then reports the return.
      const std::less<const WriteItem*> before;
      const WriteItem* const first = plan.items.data();
      if (!before(&item, first) && before(&item, first + plan.items.size())) {
        const auto index = static_cast<std::size_t>(&item - first);
        if (index < account_->awaits.size() && account_->awaits[index]) {
          account_->awaits[index] = false;
          --account_->awaited;
        }
      }
    }
    // Ends with the last copy of the lent tensor, on whichever thread drops that.
    const std::shared_ptr<void> lease(nullptr, [account = account_](std::nullptr_t) {
      MutexLock lock(account->mutex);
      --account->lent;
      account->tell_if_returned();
    });
    if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != torch::kStrided || tensor.is_quantized()) {
      // This kind of tensor cannot be lent; the writer will refuse it.
      return tensor;
    }
    const torch::NoGradGuard no_grad;
    // Shares the memory, and holds the lease for as long as anybody uses it.
    torch::Tensor result = torch::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [lease, tensor](void*) {},
        torch::TensorOptions(tensor.scalar_type()).device(tensor.device()));
    // The memory alone does not say that its numbers are read as conjugate or negative.
    if (tensor.is_conj()) result = result.conj();
    if (tensor.is_neg()) result = result._neg_view();
    return result;
  }

  void end() {
    MutexLock lock(account_->mutex);
    // Returns items that the writer never asked for, too: it is done with all of them.
    account_->returned = true;
    if (const auto tell = std::exchange(account_->on_returned, nullptr)) tell();
  }

  void disarm() {
    MutexLock lock(account_->mutex);
    account_->on_returned = nullptr;
  }

 private:
  // Shared with lent tensors, which may outlive the save.
  struct Account {
    explicit Account(std::function<void()> told) : on_returned(std::move(told)) {}

    void tell_if_returned() CAIRN_REQUIRES(mutex) {
      if (!expected || awaited > 0 || lent > 0) return;
      returned = true;
      if (const auto tell = std::exchange(on_returned, nullptr)) tell();
    }

    Mutex mutex;
    std::function<void()> on_returned CAIRN_GUARDED_BY(mutex);  // empty after the call, or if disarmed
    bool expected CAIRN_GUARDED_BY(mutex) = false;
    bool returned CAIRN_GUARDED_BY(mutex) = false;
    std::vector<bool> awaits CAIRN_GUARDED_BY(mutex);  // by item: whether it is a tensor that the writer has not received yet
    std::size_t awaited CAIRN_GUARDED_BY(mutex) = 0;
    std::size_t lent CAIRN_GUARDED_BY(mutex) = 0;
  };

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
