// Whether a writer still has tensors of a state that is streamed: what `resolve_data` gives it is lent, and counted. Internal.
#pragma once

#include <functional>
#include <memory>

#include <cairn/state/planner.hpp>

namespace cairn {

// Thread-safe.
class TensorLeases {
 public:
  // `on_returned` is called once, on any thread: when the writer has had all tensors of the plan, and has let go of all that were made
  // of them; or, by `end`, has told that it needs them no more. Not after `disarm`.
  explicit TensorLeases(std::function<void()> on_returned);

  // The finished plan. It stays alive and unchanged for the writer.
  void expect(const SavePlan& plan);
  // The same tensor, whose memory counts as lent while the result, or anything made of it, lives. Throws kPrecondition if it was called
  // after all was returned: the memory may hold something else by now.
  torch::Tensor lend(const SavePlan& plan, const WriteItem& item, const torch::Tensor& tensor);
  void end();
  void disarm();

 private:
  struct Account;
  const std::shared_ptr<Account> account_;
};

}  // namespace cairn
