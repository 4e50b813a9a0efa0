// The runtime's orders to the supervisor of its rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/machine_table.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/actors/traced.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// Also holds the facts that a dead supervisor leaves to the next one. Thread-safe.
class Orders {
 public:
  void start(Traced<StartCall> call) {
    const MutexLock lock(mutex_);
    calls_.push_back(std::move(call));
  }
  // `was_lost`: no other rank knows that the call has ended.
  void end(const std::string& checkpointer, protocol::EndedCall call, bool was_lost) {
    const MutexLock lock(mutex_);
    if (ended_.size() >= kMachinesKept && ended_.count(checkpointer) == 0) ended_.clear();
    if (was_lost) lost_.insert_or_assign(checkpointer, call);
    ended_.insert_or_assign(checkpointer, std::move(call));
  }
  std::vector<Traced<StartCall>> take_calls() {
    const MutexLock lock(mutex_);
    return std::exchange(calls_, {});
  }
  std::map<std::string, protocol::EndedCall> take_lost_calls() {
    const MutexLock lock(mutex_);
    return std::exchange(lost_, {});
  }
  // The last calls, by checkpointer.
  std::map<std::string, protocol::EndedCall> ended_calls() {
    const MutexLock lock(mutex_);
    return ended_;
  }

  std::atomic<std::uint64_t> counter_seen{0};  // the largest counter of any attempt of this rank

 private:
  Mutex mutex_;
  std::vector<Traced<StartCall>> calls_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, protocol::EndedCall> ended_ CAIRN_GUARDED_BY(mutex_), lost_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
