// How a save or load is ended before its time.
//
//   cairn::Cancellation cancellation;                       // any thread of this rank may keep a copy
//   cairn::SaveOptions options;
//   options.cancellation = cancellation;
//   checkpointer.save(state, "run/step_100", options);      // meanwhile, elsewhere: cancellation.cancel("preempted");
//
// The call ends on all ranks, with the same failure map: the rank whose caller cancelled is in it as `cancelled`, with the reason and
// the phase in which it was, and every rank throws CheckpointException. Other ranks need no Cancellation for that. Nothing is published
// then: the checkpoint that was there before is whole, what was written is let go of, and removed by the next save that succeeds.
//
// Once all ranks have written and the coordinator publishes, it is too late: the save succeeds as if nothing had been said. A hook that
// is running is not interrupted; the call returns when its own rank's hook has. Ranks that do not stop their part of the phase within
// RuntimeOptions::cancel_grace are in the map as `busy`.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace cairn {

// A handle: copies share one state. For one call, or for all calls of a phase of the trainer's life: once cancelled, each call that is
// given it ends at once. Thread-safe.
class Cancellation {
 public:
  Cancellation();

  // Returns at once; the call ends soon after. Of several reasons the first one counts. May be called within a hook.
  void cancel(const std::string& why = "") const;
  bool is_cancelled() const;

  // --- for Cairn's own use ----------------------------------------------------------------------------------------------------------

  // Calls `react` with the reason once, if that comes or has come: within `cancel`, or here. Not any more once the result is dropped,
  // which waits for one that runs. `react` must not block, nor use this object.
  std::shared_ptr<void> watch(std::function<void(const std::string& why)> react) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cairn
