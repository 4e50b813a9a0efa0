// Options and handle of `Checkpointer::async_save`, which saves while the trainer goes on.
//
//   // On all ranks. Returns once the state is copied.
//   cairn::AsyncSaveResponse saving = checkpointer.async_save(state, "run/step_100");
//   train();
//   saving.result();  // throws whatever `save` would have thrown
//
// Within `async_save`, on the caller's thread, the ranks meet, Stateful objects return their state
// in an order that all ranks agree on, and the state is copied (see staging.hpp). Everything else,
// including the hooks of planners and writers, runs on the save's own thread. The save uses the
// World's connections, never the trainer's process groups.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/runtime/observation/progress.hpp>
#include <cairn/state/staging.hpp>

namespace cairn {

// Tells `async_save` how to treat an earlier save of its checkpointer that is in flight. Must be
// the same on all ranks.
enum class WhileInFlight : std::uint8_t {
  kWait = 1,  // waits for the earlier save
  // Fails the new save on all ranks, with kPrecondition for each rank that has a save in flight.
  kRefuse,
  // Stages the new save at once, and starts it when the earlier save has ended. Queued saves that
  // have not begun on this rank end as cancelled, on all ranks. If fifteen saves are requested
  // while one runs, the next call waits for the running save.
  kReplace,
};

// Options of an asynchronous save, beside SaveOptions. The deadline in SaveOptions starts within
// `async_save`, after the wait for earlier saves. A queued save whose deadline
// passes is cancelled when it reaches the head of the queue. User-defined planners, writers and
// stagers are used until the save has ended, by one save at a time.
struct AsyncSaveOptions {
  WhileInFlight while_in_flight = WhileInFlight::kWait;
  StagingOptions staging;
  // Replaces Cairn's own stager. Only `block_on_staging` of `staging` then has an effect.
  std::shared_ptr<AsyncStager> stager;
  // Runs the threads of Cairn's writer at the lowest CPU and I/O priority. Planning and publication
  // keep their priority, because all ranks wait for them.
  bool low_priority = false;
  // Called once when the save has ended, on one of Cairn's threads, without locks held. The
  // argument is what `result` would throw, or null if the save succeeded. A failure passed here
  // counts as read. Must not throw or call the checkpointer.
  std::function<void(std::exception_ptr)> on_done;
};

class AsyncSave;
class AsyncSaveResponse;
class Checkpointer;
struct SaveOptions;

// One asynchronous save. The handle may be copied, and used on any thread. Dropping the handle does
// not end the save. The next `save` or `async_save` of that checkpointer on this rank throws a
// failure that nobody has read through `result` or `on_done`; if there is no such call, the failure
// is logged. A save that callers cancelled is not such a failure. A process that exits, even by
// std::exit, waits for its saves as ~Checkpointer does.
//
// Waits without a deadline take as long as necessary, and any wait may be repeated. In a forked
// child process, waiting for something that had not happened before the fork throws kPrecondition.
// There, `staged` and `done` throw kPrecondition instead of returning false.
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

  // Waits. Returns the save id, or throws whatever `save` would have thrown: CheckpointException,
  // with the same map on all ranks.
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
  std::shared_ptr<Checkpointer> checkpointer_;  // if the save has one of its own
};

}  // namespace cairn
