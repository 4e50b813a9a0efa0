// Detects collectives that a device does not finish in time, after the calls that started them have
// returned. Internal.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cairn/base/mutex.hpp>
#include <cairn/base/signals_blocked.hpp>

namespace cairn::training {

// Returns an event that is over when the work queued so far on the current stream is.
inline c10::Event end_of_work_on(c10::Device device) {
  c10::Event over(device.type());
  over.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return over;
}

class DeviceWatch {
 public:
  // Starts the watch's thread. That thread calls `late` at most once, with the first action that
  // was not finished in time. `late` may destroy the watch.
  DeviceWatch(std::chrono::milliseconds timeout, std::function<void(const std::string& action)> late)
      : state_(std::make_shared<State>()) {
    state_->timeout = timeout;
    state_->late = std::move(late);
    state_->thread = start_thread("cairn-watch", [state = state_] { State::run(state); });
  }
  ~DeviceWatch() {
    {
      const MutexLock lock(state_->mutex);
      state_->stopped = true;
      state_->expected.clear();
    }
    state_->changed.notify_all();
    if (state_->thread.get_id() == std::this_thread::get_id()) {
      // `late` destroys the watch on the watch's own thread, which cannot join itself.
      state_->thread.detach();
    } else {
      state_->thread.join();
    }
  }
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Expects the work queued so far on the current stream of `device` to finish within the timeout.
  void expect(std::string action, c10::Device device) {
    // The current stream waits for the collective, so this event is over when the collective is.
    c10::Event over = end_of_work_on(device);
    {
      const MutexLock lock(state_->mutex);
      state_->expected.push_back({std::move(action), std::move(over), std::chrono::steady_clock::now() + state_->timeout});
    }
    state_->changed.notify_all();
  }

 private:
  // An event can be asked or waited for without limit, but not waited for with a deadline. The
  // thread therefore asks from time to time.
  static constexpr std::chrono::milliseconds kPollMax{50};

  // Shared with the thread, which may outlive the watch.
  struct State {
    struct Expected {
      std::string action;
      c10::Event over;
      std::chrono::steady_clock::time_point until;
    };

    static void run(const std::shared_ptr<State>& state) {
      MutexLock lock(state->mutex);
      while (!state->stopped) {
        auto& expected = state->expected;
        if (expected.empty()) {
          state->changed.wait(state->mutex);
          continue;
        }
        if (is_over(expected.front().over)) {
          expected.pop_front();
          continue;
        }
        // All deadlines are equally far from their start, so the first one comes first.
        if (std::chrono::steady_clock::now() >= expected.front().until) {
          const std::string action = std::move(expected.front().action);
          // Without the lock, because `late` breaks the group and may destroy the watch.
          lock.unlock();
          state->late(action);
          return;
        }
        state->changed.wait_for(state->mutex, std::clamp(state->timeout / 20, std::chrono::milliseconds(1), kPollMax));
      }
    }

    static bool is_over(const c10::Event& event) {
      try {
        return event.query();
      } catch (const std::exception&) {
        return true;  // the device has failed and reports that to its next user
      }
    }

    std::chrono::milliseconds timeout;
    std::function<void(const std::string&)> late;
    Mutex mutex;
    CondVar changed;
    std::deque<Expected> expected CAIRN_GUARDED_BY(mutex);
    bool stopped CAIRN_GUARDED_BY(mutex) = false;
    std::thread thread;
  };

  const std::shared_ptr<State> state_;
};

// Waits on the host for the work queued so far on the current stream of `device`. Returns false if
// the device has not finished it by `until`.
inline bool finishes_by(std::chrono::steady_clock::time_point until, c10::Device device) {
  const c10::Event over = end_of_work_on(device);
  // Most waits are short; the pause doubles, so that a long one costs little.
  for (std::chrono::microseconds pause{20}; !over.query();
       pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(1))) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace cairn::training
