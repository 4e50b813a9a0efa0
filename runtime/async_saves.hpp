// The asynchronous saves of one checkpointer on one rank: what is in flight, in which order, and what nobody has read. Internal.
//
//   async_save ── AsyncSave::begin: hooks up to the Stateful ones, and staging, on the caller's thread
//                      └── its own thread: staged ── its turn: all earlier ones have ended ── all other hooks ── ended
//
// A state that is streamed is staged only when the writer has let go of its tensors: there the caller's thread waits for that.
//
// A process that ends by std::exit runs no destructor of a checkpointer that is still there: its saves are waited for, and reported, as if
// it had.
//
// A save whose turn has not come holds the planner's first hook back, so its rank offers no plan, so it is published after the earlier
// ones, on every rank. One that is cancelled before its turn runs no hook of planner and writer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/actors/protocol/save_turns.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/runtime/async_hooks.hpp>
#include <cairn/runtime/async_save.hpp>
#include <cairn/runtime/caller_executor.hpp>
#include <cairn/runtime/cancellation.hpp>
#include <cairn/runtime/progress_display.hpp>
#include <cairn/runtime/tensor_leases.hpp>
#include <cairn/state/device_copies.hpp>

namespace cairn {

// Which saves of a checkpointer are in flight, and whose turn it is; its lock guards the states of all of them.
struct SaveOrder {
  std::mutex mutex;
  std::condition_variable changed;
  protocol::SaveTurns turns;  // by AsyncSave::Parts::number
};

class AsyncSave : public std::enable_shared_from_this<AsyncSave> {
 public:
  // What it is made of.
  struct Parts {
    // RankRuntime::save and cancel, of one that lives until the save has ended, no longer.
    std::function<std::uint64_t(SaveCall call, std::function<void(Outcome)> done)> start;
    std::function<void(const std::string& slot, std::uint64_t ticket, const std::string& why)> end;
    int rank = 0;
    int ranks = 1;
    ShowProgress show_progress = ShowProgress::kOff;
    std::chrono::milliseconds shutdown_deadline{0};  // how long the end of the process waits for it
    std::shared_ptr<SaveOrder> order;
    std::uint64_t number = 0;
    std::string slot;  // which checkpointer the actors know it by
    std::string checkpoint_id;
    std::shared_ptr<SavePlanner> planner;
    bool planner_is_users = false;
    std::shared_ptr<StorageWriter> writer;
    std::shared_ptr<AsyncStager> stager;
    std::optional<Cancellation> cancellation;  // of the caller
    AsyncSaveOptions options;
  };
  explicit AsyncSave(Parts parts);
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // On the caller's thread: starts the call, and runs its hooks until `describe` has run and what it returned is staged. Then the
  // save has a thread of its own. Throws what starting the call throws; then there is no save.
  using Describe = std::function<StateDict(const std::vector<std::string>& key_order)>;
  void begin(SaveCall call, const Describe& describe);

  int rank() const { return parts_.rank; }
  std::chrono::milliseconds shutdown_deadline() const { return parts_.shutdown_deadline; }
  const std::string& slot() const { return parts_.slot; }
  const std::string& checkpoint_id() const { return parts_.checkpoint_id; }

  bool staged() const;
  bool wait_staged(std::optional<std::chrono::milliseconds> deadline) const;
  bool done() const;
  bool wait(std::optional<std::chrono::milliseconds> deadline) const;
  std::string result();
  SaveProgress progress() const;
  void cancel(const std::string& why) const { own_cancellation_.cancel(why); }
  // The same, unless its turn has come: then it returns false.
  bool cancel_before_turn(const std::string& why);

  // Whether it has failed, nobody has read that, and it is news to this rank's caller.
  bool is_unread() const;
  // The failure, which counts as read then.
  std::exception_ptr take_unread();
  // Waits for the thread to be gone.
  void join();
  // Leaves the thread to itself, and to it what the save still needs. Returns false if it has ended meanwhile.
  bool abandon(std::shared_ptr<void> needed);

 private:
  void stage(const StateDict& state);
  void end_staging();
  bool streams() const { return parts_.stager->streams(); }
  void set_staged();
  void request_end(std::uint64_t ticket, const std::string& why);
  void serve() noexcept;
  void end(Outcome outcome);
  const StateDict& staged_state();
  bool had_turn() const;
  // Under the lock of the order.
  bool is_news() const;
  bool wait_for(const bool& flag, std::optional<std::chrono::milliseconds> deadline) const;

  Parts parts_;
  CallerExecutor executor_;
  const std::shared_ptr<CallProgress> progress_ = std::make_shared<CallProgress>();
  std::unique_ptr<ProgressDisplay> display_;  // since its turn has come
  TensorLeases leases_;  // of a state that is streamed
  SideStreams streams_;  // the same, of the devices that it is on
  AsyncWriter writer_;
  AsyncPlanner planner_;
  const Cancellation own_cancellation_;
  std::vector<std::shared_ptr<void>> heeding_;

  // On the caller's thread until the save's own begins.
  bool described_ = false;
  std::unique_ptr<Staging> staging_;
  StateDict state_;
  std::exception_ptr staging_error_;
  std::thread thread_;

  // Under the lock of the order.
  bool staged_ = false;
  bool done_ = false;
  bool read_ = false;
  std::exception_ptr error_;
  std::string save_id_;
  std::shared_ptr<void> needed_;  // once the checkpointer is gone
};

// Not thread-safe, but for `order`.
class AsyncSaves {
 public:
  AsyncSaves() : order_(std::make_shared<SaveOrder>()) {}
  // Waits for what is in flight, as long as the deadline allows; then cancels it, and waits once more. Logs what nobody has read.
  // What runs nevertheless is left to itself, with `needed`.
  void close(std::chrono::milliseconds deadline, const std::shared_ptr<void>& needed);

  const std::shared_ptr<SaveOrder>& order() const { return order_; }
  void add(std::shared_ptr<AsyncSave> save);
  bool any_in_flight() const;
  // Of one slot, or all.
  bool wait(std::optional<std::chrono::milliseconds> deadline, const std::string* slot = nullptr) const;
  // Ends those whose turn has not come, and waits for that.
  void replace(const std::string& why) const;
  // The first failure that nobody has read, null if there is none; it counts as read then. `by`: the call that came across it.
  std::exception_ptr take_unread(const std::string& by);

 private:
  const std::shared_ptr<SaveOrder> order_;
  std::vector<std::shared_ptr<AsyncSave>> saves_;  // in flight, or ended and perhaps unread; oldest first
};

}  // namespace cairn
