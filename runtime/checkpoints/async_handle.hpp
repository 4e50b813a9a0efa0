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
// not end the save. A failure counts as read if `result` has thrown it or AsyncSaveOptions::on_done
// has received it. An unread failure is thrown by the next `save`, `async_save` or `wait_for_saves`
// of the checkpointer on this rank. If none of them is called any more, the failure is logged when
// the checkpointer is destroyed or the process exits. A failure that consists only of cancellations
// by callers is neither thrown there nor logged. When the process returns from `main` or calls
// std::exit, it first waits for its saves, with the same deadlines as ~Checkpointer.
//
// Waits without a deadline take as long as necessary, and any wait may be repeated. In a forked
// child process, `wait_staged`, `wait` and `result` throw kPrecondition if the save was not staged,
// or had not ended, before the fork. There, `staged` and `done` also throw kPrecondition where they
// would otherwise return false.
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

  // Waits until the save has ended. Returns the save id. If the save failed, throws what `save`
  // would have thrown: a CheckpointException, whose failure map is the same on all ranks.
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
  std::shared_ptr<Checkpointer> checkpointer_;  // keeps the save's checkpointer alive; null if the user owns the checkpointer
};

}  // namespace cairn
