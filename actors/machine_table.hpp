// The state machines of one actor, by checkpointer. A program may make and destroy many
// checkpointers. So once there are `kMachinesKept` machines, each new one replaces an idle one, if
// any. New machines start above the attempt counters of removed ones, so no counter is used twice.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/events.hpp>

namespace cairn {

inline constexpr std::size_t kMachinesKept = 256;

// `Entry` must be constructible from a protocol::Identity and RuntimeOptions. It must have
// `counter_seen()`, and `is_idle()`, which returns whether the entry can be removed without loss.
template <class Entry>
class MachineTable {
 public:
  MachineTable(protocol::Identity world, const RuntimeOptions& options) : world_(std::move(world)), options_(options) {}

  Entry* find(const std::string& checkpointer) {
    const auto found = entries_.find(checkpointer);
    return found == entries_.end() ? nullptr : &found->second;
  }
  // Makes the entry of `checkpointer`, which must have no entry yet.
  Entry& make(const std::string& checkpointer) {
    if (entries_.size() >= kMachinesKept) {
      const auto idle = std::find_if(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.second.is_idle(); });
      if (idle != entries_.end()) erase(idle->first);
    }
    protocol::Identity identity = world_;
    identity.checkpointer = checkpointer;
    return entries_.try_emplace(checkpointer, std::move(identity), options_).first->second;
  }
  void erase(const std::string& checkpointer) {
    const auto found = entries_.find(checkpointer);
    if (found == entries_.end()) return;
    world_.counter_floor = std::max(world_.counter_floor, found->second.counter_seen());
    entries_.erase(found);
  }
  void clear() { entries_.clear(); }

  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  protocol::Identity world_;
  const RuntimeOptions options_;
  std::map<std::string, Entry> entries_;
};

}  // namespace cairn
