// The deadlines of one actor. CAF's clock knows only the earliest one, so a stopped timer leaves no
// message behind.
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

  // Replaces a timer with the same key.
  void start(Key key, Time when) { deadlines_.insert_or_assign(std::move(key), when); }
  void stop(const Key& key) { deadlines_.erase(key); }

  // Removes and returns the timers that are due.
  std::vector<Key> take_due(Time now) {
    std::vector<Key> due;
    for (auto it = deadlines_.begin(); it != deadlines_.end();) {
      if (it->second <= now) {
        due.push_back(it->first);
        it = deadlines_.erase(it);
      } else {
        ++it;
      }
    }
    return due;
  }

  // Schedules a WakeUp for `self` no later than its next deadline. Call it after every change; pass
  // `woken` when handling a WakeUp.
  template <class Self>
  void arm(Self* self, bool woken = false) {
    if (woken) armed_.reset();
    std::optional<Time> next;
    for (const auto& [key, when] : deadlines_)
      if (!next || when < *next) next = when;
    if (!next || (armed_ && *armed_ <= *next)) return;
    armed_ = next;
    self->delayed_send(self, *next - self->clock().now(), WakeUp{});
  }

 private:
  std::map<Key, Time> deadlines_;
  std::optional<Time> armed_;
};

}  // namespace cairn

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::WakeUp)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::StopNow)
