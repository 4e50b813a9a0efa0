// Supervises one rank: its child actors, its links, and its side of every call.
//
//                    runtime
//                       | Orders, CancelCall, Stop
//                       v                    Request
//   links <--------> supervisor ----------------> planner, storage ...> executor
//        LinkSend    |       ^ ^                                           :
//        LinkMessage v       | :.................. TaskReport .............:
//                 coordinator  CoordinatorEffect
//
//   owns        one RankMachine per checkpointer, with its deadlines; the planner, storage,
//               coordinator and links actors
//   talks to    those actors, and other ranks through the links. Messages of this rank to itself
//               bypass the links and are not encoded. Injected faults drop links by LinkDrop
//   states      running -> stopping (all calls cancelled, waiting for their last tasks) -> stopped
//   deadlines   the timers of each machine
//   on death    of a child: attempts that need it fail, and a new actor replaces it, at most
//               `child_restarts_max` times in 10 minutes; a call that succeeds or starts later
//               tries again. New links use the descriptor that the factory listens on
//               its own: the children end too, and running calls end as internal failures. The
//               runtime starts a new supervisor, which takes over the Orders
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/typed_actor.hpp>

#include <cairn/actors/coordinator_actor.hpp>
#include <cairn/actors/links/links.hpp>
#include <cairn/actors/local_messages.hpp>
#include <cairn/actors/machine_table.hpp>
#include <cairn/actors/planner_actor.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/actors/rank_config.hpp>
#include <cairn/actors/storage_actor.hpp>
#include <cairn/actors/traced.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// The runtime's orders to the supervisor of its rank. Also holds the facts that a dead supervisor
// leaves to the next one. Thread-safe.
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

// The current children of a supervisor, for inspection.
struct Children {
  TaskActor planner;
  TaskActor storage;
  CoordinatorActor coordinator;
};
struct GetChildren {};

using SupervisorActor =
    caf::typed_actor<caf::reacts_to<TakeOrders>, caf::reacts_to<Traced<CancelCall>>, caf::reacts_to<Traced<TaskReport>>,
                     caf::reacts_to<Traced<CoordinatorEffect>>, caf::reacts_to<Traced<CoordinatorStopped>>,
                     caf::reacts_to<Traced<Unsent>>, caf::reacts_to<Traced<Stop>>, caf::reacts_to<StopNow>, caf::reacts_to<WakeUp>,
                     caf::reacts_to<LinkDrop>, caf::reacts_to<LinkUp>, caf::reacts_to<LinkDown>, caf::reacts_to<LinkMessage>,
                     caf::reacts_to<LinkRefused>, caf::replies_to<GetChildren>::with<Children>>;

// Starts the supervisor of a rank. `links` may be null in a world of one rank.
SupervisorActor spawn_supervisor(caf::actor_system& system, const RankConfig& config, std::shared_ptr<LinksFactory> links,
                                 std::shared_ptr<Tracer> tracer, std::shared_ptr<Orders> orders);

}  // namespace cairn

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::Children)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::GetChildren)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cairn::TakeOrders)
