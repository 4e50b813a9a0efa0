// Tracks whether a writer still uses tensors of a streamed state (StagingOptions::stream). The
// planner's `resolve_data` lends tensors to the writer, and this class counts them. Internal.
#pragma once

#include <functional>
#include <memory>

#include <cairn/state/planner.hpp>

namespace cairn {

// Thread-safe.
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

}  // namespace cairn
