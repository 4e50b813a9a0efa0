// One asynchronous save, from the call to its end. Internal: users have an AsyncSaveResponse.
//
//   async_save ── AsyncSave::begin, on the caller's thread: hooks up to the Stateful ones; staging
//       └── its own thread: staged ── its turn: earlier saves have ended ── other hooks ── ended
//
// A streamed state (StagingOptions::stream) is not copied, so it counts as staged only when the
// writer has released its tensors. With `block_on_staging`, the caller's thread waits for that.
//
// Until a save's turn comes on a rank, the planner's first hook blocks there, so the rank sends no
// plan. The save is therefore published after the earlier saves. If the save is cancelled before
// its turn, it runs no hook of the planner and writer.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/call.hpp>
#include <cairn/actors/protocol/save_turns.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/runtime/checkpoints/async_hooks.hpp>
#include <cairn/runtime/checkpoints/cancellation.hpp>
#include <cairn/runtime/checkpoints/options.hpp>
#include <cairn/runtime/observation/progress_display.hpp>
#include <cairn/runtime/observation/progress_hooks.hpp>
#include <cairn/runtime/worlds/caller_executor.hpp>
#include <cairn/state/device_copies.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/staging.hpp>
#include <cairn/state/storage.hpp>

namespace cairn {

// A checkpointer's saves in flight, and which one has its turn. One lock guards the states of all
// of them, because a save waits for changes of other saves.
struct SaveOrder {
  Mutex mutex;
  CondVar changed;
  protocol::SaveTurns turns CAIRN_GUARDED_BY(mutex);  // by AsyncSave::Parts::number
};

class AsyncSave : public std::enable_shared_from_this<AsyncSave> {
 public:
  // Constructor arguments.
  struct Parts {
    // `start` is RankRuntime::save, `end` is RankRuntime::cancel. The runtime must live until the
    // save has ended.
    std::function<std::uint64_t(SaveCall call, std::function<void(CallResult)> done)> start;
    std::function<void(const std::string& slot, std::uint64_t ticket, const std::string& why)> end;
    // Records in the trace how long the copy of the state took.
    std::function<void(const std::string& slot, std::uint64_t ticket, Duration duration)> note_staging;
    ShownCall shown;                                 // names the checkpoint and this rank
    std::chrono::milliseconds shutdown_deadline{0};  // how long a process that exits waits for the save
    std::shared_ptr<SaveOrder> order;
    std::uint64_t number = 0;
    std::string slot;  // the checkpointer name that the actors see
    std::shared_ptr<SavePlanner> planner;
    bool planner_is_users = false;
    std::string rules;  // of make_save_hooks
    std::shared_ptr<StorageWriter> writer;
    std::shared_ptr<AsyncStager> stager;
    std::optional<Cancellation> cancellation;  // the caller's Cancellation
    AsyncSaveOptions options;
  };
  explicit AsyncSave(Parts parts);
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // Starts the call, and runs its hooks on the caller's thread until `describe`, which collects the
  // state, has run. The save then continues on a thread of its own. With `block_on_staging`, waits
  // until the state is staged. If the call cannot start, throws the reason; then there is no save.
  using Describe = std::function<StateDict(const std::vector<std::string>& key_order)>;
  void begin(SaveCall call, const Describe& describe);

  int rank() const { return parts_.shown.rank; }
  std::chrono::milliseconds shutdown_deadline() const { return parts_.shutdown_deadline; }
  const std::string& slot() const { return parts_.slot; }
  const std::string& checkpoint_id() const { return parts_.shown.checkpoint_id; }

  bool staged() const;
  bool wait_staged(std::optional<std::chrono::milliseconds> deadline) const;
  bool done() const;
  bool wait(std::optional<std::chrono::milliseconds> deadline) const;
  std::string result();
  SaveProgress progress() const;
  void cancel(const std::string& why) const { own_cancellation_.cancel(why); }
  // Cancels the save unless its turn has come. Returns whether it was cancelled.
  bool cancel_before_turn(const std::string& why);

  // Returns whether the save has failed, nobody has read the failure, and callers did not cancel
  // the save.
  bool is_unread() const;
  // Returns the failure, and marks it as read. Returns null if `is_unread` is false.
  std::exception_ptr take_unread();
  // Waits until the thread has ended.
  void join();
  // Detaches the thread, and keeps `needed` alive until the save has ended. Returns false if the
  // save has already ended.
  bool abandon(std::shared_ptr<void> needed);

 private:
  void stage(const StateDict& state);
  void end_staging();
  void note_staged() const;
  bool streams() const { return parts_.stager->streams(); }
  void set_staged();
  void request_end(const std::string& why);
  void serve() noexcept;
  void end(CallResult outcome);
  const StateDict& staged_state();
  bool had_turn() const;
  bool is_news() const CAIRN_REQUIRES(parts_.order->mutex);
  bool wait_for(bool AsyncSave::*flag, std::optional<std::chrono::milliseconds> deadline) const;

  Parts parts_;
  const pid_t process_ = ::getpid();
  CallerExecutor executor_;
  const std::shared_ptr<CallProgress> progress_ = std::make_shared<CallProgress>();
  std::unique_ptr<ProgressDisplay> display_;  // created when the save's turn comes
  TensorLeases leases_;  // used for a streamed state
  SideStreams streams_;  // used for a streamed state: the streams of its devices
  AsyncWriter writer_;
  CountingSavePlanner planner_;
  const Cancellation own_cancellation_;
  std::vector<std::shared_ptr<void>> heeding_;

  // Used on the caller's thread until the save's own thread starts.
  std::uint64_t ticket_ = 0;  // the call's ticket
  bool described_ = false;
  MonotonicTime staging_began_;
  std::unique_ptr<Staging> staging_;
  StateDict state_;
  std::exception_ptr staging_error_;
  std::thread thread_;

  bool staged_ CAIRN_GUARDED_BY(parts_.order->mutex) = false;
  bool done_ CAIRN_GUARDED_BY(parts_.order->mutex) = false;
  bool read_ CAIRN_GUARDED_BY(parts_.order->mutex) = false;
  std::exception_ptr error_ CAIRN_GUARDED_BY(parts_.order->mutex);
  std::string save_id_ CAIRN_GUARDED_BY(parts_.order->mutex);
  std::shared_ptr<void> needed_ CAIRN_GUARDED_BY(parts_.order->mutex);  // set when the checkpointer is gone
};

// The asynchronous saves of one checkpointer on one rank: those in flight, their order, and
// failures that nobody has read. std::exit may end the process without destroying a checkpointer.
// An exit handler then waits for the checkpointer's saves and logs their failures, as its
// destructor would. Not thread-safe, except `order`.
class AsyncQueue {
 public:
  AsyncQueue() : order_(std::make_shared<SaveOrder>()) {}
  // Waits for saves in flight, for at most `deadline`; then cancels them, and waits as long again.
  // Logs failures that nobody has read. Detaches saves that are still running, and keeps `needed`
  // alive for them.
  void close(std::chrono::milliseconds deadline, const std::shared_ptr<void>& needed);

  const std::shared_ptr<SaveOrder>& order() const { return order_; }
  void add(std::shared_ptr<AsyncSave> save);
  bool any_in_flight() const;
  // Waits for the saves of one slot (AsyncSave::Parts::slot), or for all if `slot` is null. Returns
  // false if one is still running at the deadline.
  bool wait(std::optional<std::chrono::milliseconds> deadline, const std::string* slot = nullptr) const;
  // Cancels the saves whose turn has not come, and waits until they have ended.
  void replace(const std::string& why) const;
  // Returns the first failure that nobody has read, and marks it as read; null if there is none.
  // `by` describes the current call; the text of the exception begins with it.
  std::exception_ptr take_unread(const std::string& by);

 private:
  const std::shared_ptr<SaveOrder> order_;
  std::vector<std::shared_ptr<AsyncSave>> saves_;  // in flight, or ended and perhaps unread; oldest first
};

}  // namespace cairn
