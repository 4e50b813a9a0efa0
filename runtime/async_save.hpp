// Saves that go on while the trainer does: what `Checkpointer::async_save` is told, and what it returns.
//
//   cairn::AsyncSaveResponse saving = checkpointer.async_save(state, "run/step_100");   // on all ranks; returns once the state is copied
//   train();
//   saving.result();                                                                   // throws what `save` would have thrown
//
// Within `async_save`, on the caller's thread: the ranks meet, Stateful objects describe themselves in the agreed order, and the state
// is copied (see staging.hpp). Everything else, the hooks of planners and writers included, runs on a thread of the save's own. It uses
// the connections of the World, never the trainer's process groups.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/base/failure.hpp>
#include <cairn/state/staging.hpp>

namespace cairn {

// What `async_save` does while an earlier one of its checkpointer is in flight. The same on all ranks.
enum class WhileInFlight : std::uint8_t {
  kWait = 1,  // waits for it
  // Goes on, and fails on all ranks, with kPrecondition for each rank on which one is in flight.
  kRefuse,
  // Is staged at once and begins when the earlier one has ended. Earlier ones that have not begun yet on this rank end as cancelled, on
  // all ranks. Should fifteen saves come while one runs, the next one waits for that.
  kReplace,
};

// Options of an asynchronous save, beside SaveOptions. The deadline in SaveOptions starts when `async_save` is called, after it
// has waited for earlier saves. A queued save whose deadline passes is cancelled when it reaches the head of the queue.
// User-defined planners, writers and stagers are used until the save has ended, by one save at a time.
struct AsyncSaveOptions {
  WhileInFlight while_in_flight = WhileInFlight::kWait;
  StagingOptions staging;
  std::shared_ptr<AsyncStager> stager;  // replaces Cairn's own; of `staging` only `block_on_staging` counts then
  // Runs the threads of Cairn's writer at the lowest CPU and I/O priority. Planning and publication keep their priority, because
  // all ranks wait for them.
  bool low_priority = false;
  // Called once when the save has ended, on a thread of Cairn's, without locks, with what `result` throws; null: it has succeeded. Such
  // a failure counts as read. Must not throw, nor call the checkpointer.
  std::function<void(std::exception_ptr)> on_done;
};

struct SaveProgress {
  enum class Step : std::uint8_t {
    kStaging = 1,  // the state is being copied
    kQueued,       // waits for an earlier save
    kPlanning,
    kWriting,
    kPublishing,  // this rank has written everything
    kDone,
  };
  Step step = Step::kStaging;
  // Of this rank's part; known while it writes and after that. Done is what the writer has taken: it may still be on its way.
  std::uint64_t items = 0;
  std::uint64_t items_done = 0;
  std::uint64_t bytes = 0;  // of tensors
  std::uint64_t bytes_done = 0;
  double bytes_per_second = 0;                    // since writing began, while it writes
  std::optional<std::chrono::milliseconds> left;  // of writing, at that pace
  // Host memory that this checkpointer's stager holds; of a state that is streamed, the writer.
  std::uint64_t staging_bytes = 0;

  // Of all ranks together, as this rank heard of it last, at most RuntimeOptions::progress_interval ago; absent before that, and in saves
  // that are over sooner. What ranks have not said yet is not counted.
  struct Job {
    Phase phase = Phase::kLocalPlan;  // that the coordinator is in: local plan, global plan, write, finish
    int ranks_done = 0;               // that have ended it
    std::uint64_t items = 0;
    std::uint64_t items_done = 0;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_done = 0;
    double bytes_per_second = 0;                    // since this rank began to write, while any writes
    std::optional<std::chrono::milliseconds> left;  // of writing, at the pace of the slowest rank
    // Of those that have not ended the phase, the rank that has done the smallest part of its own; -1: none. While the coordinator plans
    // or publishes, that is itself.
    int slowest_rank = -1;
    std::uint64_t slowest_bytes = 0;
    std::uint64_t slowest_bytes_done = 0;
  };
  std::optional<Job> job;
};

const char* to_string(SaveProgress::Step step) noexcept;

class AsyncSave;
class AsyncSaveResponse;
class Checkpointer;
struct SaveOptions;

// One asynchronous save: a handle that may be copied, and used on any thread. Dropping it does not end the save. A failure that nobody
// has read, by `result` or `on_done`, is thrown by the next `save` or `async_save` of that checkpointer on this rank, and logged if
// there is none. A process that exits, by std::exit too, waits for its saves as ~Checkpointer does.
// Waits: no deadline: for as long as it takes; they may be repeated.
class AsyncSaveResponse {
 public:
  // Whether the state may be changed: it is copied, or the save has ended.
  bool staged() const;
  // Returns `staged()` once that is true, or the deadline has passed.
  bool wait_staged(std::optional<std::chrono::milliseconds> deadline = std::nullopt) const;

  // Whether it has ended, well or not. Nothing of the save runs any more then, but its `on_done` may.
  bool done() const;
  bool wait(std::optional<std::chrono::milliseconds> deadline = std::nullopt) const;

  // Waits. Returns the save id, or throws what `save` would have thrown: CheckpointException with the same map on all ranks.
  std::string result() const;

  SaveProgress progress() const;

  // As a Cancellation (see cancellation.hpp): ends the save on all ranks, unless it is being published already. Returns at once.
  void cancel(const std::string& why = "") const;

 private:
  friend class Checkpointer;
  friend AsyncSaveResponse async_save(const StateDict&, const std::string&, const SaveOptions&, const AsyncSaveOptions&);
  explicit AsyncSaveResponse(std::shared_ptr<AsyncSave> save) : save_(std::move(save)) {}

  std::shared_ptr<AsyncSave> save_;
  std::shared_ptr<Checkpointer> checkpointer_;  // of the free function
};

}  // namespace cairn
