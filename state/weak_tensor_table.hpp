// A table of entries for tensors. An entry is valid while its tensor lives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include <c10/core/UndefinedTensorImpl.h>
#include <torch/types.h>

#include <cairn/base/mutex.hpp>

namespace cairn {

// Keyed by TensorImpl. Thread-safe.
template <class Entry>
class WeakTensorTable {
 public:
  void put(const torch::Tensor& tensor, Entry entry) {
    const MutexLock lock(mutex_);
    if (known_.size() >= sweep_at_) sweep();
    const auto& pointer = tensor.getIntrusivePtr();
    known_.insert_or_assign(pointer.get(), std::make_pair(WeakPointer(pointer), std::move(entry)));
  }

  // Returns the tensor's entry, or nothing if it has none.
  std::optional<Entry> find(const torch::Tensor& tensor) const {
    const MutexLock lock(mutex_);
    const auto found = known_.find(tensor.unsafeGetTensorImpl());
    if (found == known_.end()) return std::nullopt;
    return found->second.second;
  }

 private:
  using WeakPointer = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  static constexpr std::size_t kSweepAtLeast = 256;

  void sweep() CAIRN_REQUIRES(mutex_) {
    for (auto it = known_.begin(); it != known_.end();) {
      it = it->second.first.expired() ? known_.erase(it) : std::next(it);
    }
    sweep_at_ = std::max(kSweepAtLeast, 2 * known_.size());
  }

  mutable Mutex mutex_;
  // A held weak pointer keeps the address from being reused, so a lookup never finds the entry of a
  // dead tensor.
  std::unordered_map<const c10::TensorImpl*, std::pair<WeakPointer, Entry>> known_ CAIRN_GUARDED_BY(mutex_);
  std::size_t sweep_at_ CAIRN_GUARDED_BY(mutex_) = kSweepAtLeast;
};

}  // namespace cairn
