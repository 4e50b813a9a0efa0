#include <cairn/runtime/checkpoints/async_hooks.hpp>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// Shared with lent tensors, which may outlive the save.
struct TensorLeases::Account {
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

TensorLeases::TensorLeases(std::function<void()> on_returned) : account_(std::make_shared<Account>(std::move(on_returned))) {}

void TensorLeases::expect(const SavePlan& plan) {
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

torch::Tensor TensorLeases::lend(const SavePlan& plan, const WriteItem& item, const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor;  // there is nothing that the trainer could change
  {
    MutexLock lock(account_->mutex);
    if (account_->returned)
      throw Error(ErrorCode::kPrecondition, "the writer asked for \"" + plan.names[item.name] +
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

void TensorLeases::end() {
  MutexLock lock(account_->mutex);
  // Returns items that the writer never asked for, too: it is done with all of them.
  account_->returned = true;
  if (const auto tell = std::exchange(account_->on_returned, nullptr)) tell();
}

void TensorLeases::disarm() {
  MutexLock lock(account_->mutex);
  account_->on_returned = nullptr;
}

}  // namespace cairn
