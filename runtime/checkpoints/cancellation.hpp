// Ends a save or load early.
//
//   cairn::Cancellation cancellation;  // any thread of this rank may keep a copy
//   cairn::SaveOptions options;
//   options.cancellation = cancellation;
//   checkpointer.save(state, "run/step_100", options);
//   // Meanwhile, on another thread: cancellation.cancel("preempted");
//
// A cancelled call ends on all ranks with the same failure map. For the rank that called `cancel`,
// the map has the kind `cancelled`, the reason, and the phase that the rank was in. Every rank
// throws CheckpointException, even a rank that was given no Cancellation. Nothing is published: the
// previous checkpoint is intact. The next successful save removes files that the call has left.
//
// After all ranks have written and the coordinator has begun to publish, cancelling has no effect:
// the save goes on. A running hook is not interrupted: on each rank, the call returns when that
// rank's hooks have returned. Ranks that do not stop their part of the phase within
// RuntimeOptions::cancel_grace are listed as `busy`.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace cairn {

// A handle whose copies share one state. You may use one handle for a single call or for many.
// After `cancel`, each later call with this handle ends at once. Thread-safe.
class Cancellation {
 public:
  Cancellation();

  // Cancels all calls whose options contain this handle or a copy of it. Returns at once; the calls
  // end soon after. A second `cancel` has no effect. May be called within a hook.
  void cancel(const std::string& why = "") const;
  bool is_cancelled() const;

  // --- for Cairn's own use ---

  // Calls `react` with the reason. If `cancel` was called before, `watch` itself calls `react`;
  // otherwise `cancel` will call it. Destroying the last copy of the result stops the watch, and
  // first waits until a running `react` has returned. `react` must not block, and must not use this
  // object.
  std::shared_ptr<void> watch(std::function<void(const std::string& why)> react) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cairn
