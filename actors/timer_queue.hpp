// The deadlines of one actor. Only the earliest deadline is scheduled with CAF's clock. A stopped
// timer leaves at most one WakeUp behind, which does no harm.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <caf/actor_clock.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/protocol/events.hpp>

namespace cairn {

class TimerQueue {
 public:
  using Time = caf::actor_clock::time_point;
  using Key = std::pair<std::string, protocol::Timer>;  // checkpointer and timer name

  // A WakeUp that comes more than `stall` after its deadline means that the process was stopped.
  explicit TimerQueue(Duration stall) : stall_(stall) {}

  // Starts a timer at `now`. Replaces a timer with the same key.
  void start(Key key, Time now, Duration after) { deadlines_.insert_or_assign(std::move(key), Deadline{now, now + after}); }
  void stop(const Key& key) { deadlines_.erase(key); }

  // Removes and returns the timers that are due. Call it when handling a WakeUp.
  std::vector<Key> take_due(Time now) {
    if (armed_ && now - *armed_ > stall_) put_off(now, now - *armed_);
    std::vector<Key> due;
    for (auto it = deadlines_.begin(); it != deadlines_.end();) {
      if (it->second.when <= now) {
        due.push_back(it->first);
        it = deadlines_.erase(it);
      } else {
        ++it;
      }
    }
    return due;
  }

  // Ensures that `self` gets a WakeUp no later than the earliest deadline. Call it after every
  // change. Pass `woken` as true when handling a WakeUp.
  template <class Self>
  void arm(Self* self, bool woken = false) {
    if (woken) armed_.reset();
    std::optional<Time> next;
    for (const auto& [key, deadline] : deadlines_)
      if (!next || deadline.when < *next) next = deadline.when;
    if (!next || (armed_ && *armed_ <= *next)) return;
    armed_ = next;
    self->delayed_send(self, *next - self->clock().now(), WakeUp{});
  }

 private:
  struct Deadline {
    Time started;
    Time when;
    bool was_put_off = false;
  };

  // Extends deadlines by the time for which this process was stopped, so that other ranks do not
  // count as late. Once per timer, also moves the deadline to at least `stall` from now, so that
  // messages that arrived meanwhile are handled first. Does not extend deadlines set by callers, or
  // timers started after the process continued.
  void put_off(Time now, Duration late) {
    for (auto& [key, deadline] : deadlines_) {
      if (key.second == protocol::Timer::kCall || deadline.started > *armed_) continue;
      deadline.when += late;
      if (deadline.when < now + stall_ && !std::exchange(deadline.was_put_off, true)) deadline.when = now + stall_;
    }
  }

  const Duration stall_;
  std::map<Key, Deadline> deadlines_;
  std::optional<Time> armed_;
};

}  // namespace cairn

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::WakeUp)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::StopNow)
