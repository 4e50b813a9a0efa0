// The handle of `Checkpointer::async_save`, which saves while the trainer goes on.
//
//   // On all ranks. Returns once the state is copied.
//   cairn::AsyncSaveResponse saving = checkpointer.async_save(state, "run/step_100");
//   train();
//   saving.result();  // throws whatever `save` would have thrown
//
// On the caller's thread, `async_save` takes three steps: the ranks meet, Stateful objects return
// their state in an order that all ranks agree on, and the copy of the state is made or begun (see
// staging.hpp). Everything else, including the hooks of planners and writers, runs on the save's
// own thread. The save uses the World's connections, never the trainer's process groups.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/runtime/observation/progress.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn {

class AsyncSave;
class AsyncSaveResponse;
class Checkpointer;
struct AsyncSaveOptions;
struct SaveOptions;

// One asynchronous save. The handle may be copied, and used on any thread. Dropping the handle does
// not end the save. If nobody reads a failure through `result` or AsyncSaveOptions::on_done, the
// next `save`, `async_save` or `wait_for_saves` of the checkpointer on this rank throws it. Without
// such a call, the failure is logged. Neither happens if callers have cancelled the save. A process
// that exits, even by std::exit, waits for its saves as ~Checkpointer does.
//
// Waits without a deadline take as long as necessary, and any wait may be repeated. In a forked
// child process, a wait throws kPrecondition unless its event happened before the fork. Likewise,
// `staged` and `done` throw kPrecondition instead of returning false.
class AsyncSaveResponse {
 public:
  // Returns whether the trainer may change the state, because the state is copied or the save has
  // ended.
  bool staged() const;
  // Waits until `staged()` is true or the deadline has passed, and returns `staged()`.
  bool wait_staged(std::optional<std::chrono::milliseconds> deadline = std::nullopt) const;

  // Returns whether the save has ended, successfully or not. If so, nothing of the save is still
  // running, except perhaps `on_done`.
  bool done() const;
  bool wait(std::optional<std::chrono::milliseconds> deadline = std::nullopt) const;

  // Waits until the save has ended. Returns the save id. Throws what `save` would have thrown: a
  // CheckpointException with the same failure map on all ranks.
  std::string result() const;

  SaveProgress progress() const;

  // Ends the save on all ranks, as a Cancellation does (see cancellation.hpp), unless the save is
  // already being published. Returns at once.
  void cancel(const std::string& why = "") const;

 private:
  friend class Checkpointer;
  friend AsyncSaveResponse async_save(const StateDict&, const std::string&, const SaveOptions&, const AsyncSaveOptions&);
  explicit AsyncSaveResponse(std::shared_ptr<AsyncSave> save) : save_(std::move(save)) {}

  std::shared_ptr<AsyncSave> save_;
  std::shared_ptr<Checkpointer> checkpointer_;  // keeps the save's checkpointer alive; null if the user owns that
};

}  // namespace cairn
