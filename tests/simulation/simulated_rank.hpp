// One rank process of a simulated job: slots with the shipping state machines, and a trainer that
// makes one call after another. The trainer does not wait for background saves.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/protocol/save_turns.hpp>
#include <cairn/tests/simulation/agreement.hpp>
#include <cairn/tests/simulation/disk.hpp>
#include <cairn/tests/simulation/network.hpp>
#include <cairn/tests/simulation/simulated_slot.hpp>
#include <cairn/tests/simulation/simulated_trace.hpp>

namespace cairn::simulation {

struct CallSpec;

// The slot of calls that the trainer waits for. Names of background slots are derived from it.
inline const std::string kCheckpointer = "main";

// Faults in the hooks of one rank. Disk faults are given in percent of the disk operations.
enum class HookFault { kThrows = 1, kThrowsStrangely, kFutureFails, kKilled, kSlow };
struct RankTroubles {
  std::map<std::pair<std::uint64_t, protocol::Hook>, HookFault> hooks;  // by call and hook
  std::set<std::uint64_t> differing;            // calls in which its value under one name differs from the other ranks'
  std::map<std::uint64_t, Duration> deadlines;  // that its caller sets, by call
  int disk_fails = 0;
  int disk_lies = 0;  // the operation happens, but reports an error
  int disk_slow = 0;
};

class SimulatedRank : public Network::End, private DiskClient::Host {
 public:
  SimulatedRank(World& world, Job& job, int rank);
  ~SimulatedRank() override;

  void start() { next_call(); }

  int rank() const { return rank_; }
  bool alive() const { return alive_; }
  bool frozen() const { return frozen_; }
  bool is_shut_down() const { return stopping_; }
  // Returns whether the rank has made all its calls and they have ended, or it is dead.
  bool ended() const { return !alive_ || done_; }
  // Describes what is left of earlier calls. Empty between two calls.
  std::string leftover() const;
  // Returns the number of calls that have returned to the trainer.
  std::uint64_t calls_ended() const { return calls_ - (calling_ ? 1 : 0); }
  std::uint64_t disturbances() const { return disturbances_; }
  // Returns whether no fault has hit the rank and none of its connections was lost.
  bool is_undisturbed() const { return disturbances_ == 0 && links_lost_.empty(); }
  bool has_lost_link_to(int peer) const { return links_lost_.count(peer) != 0; }
  // Intervals during which the rank was frozen, and from the moment when it died or began to shut
  // down.
  const std::vector<Span>& absences() const { return absences_; }
  // Times at which its coordinator actor died.
  const std::vector<Duration>& coordinator_deaths() const { return coordinator_deaths_; }
  // Returns whether the caller has cancelled `call` or set a deadline for it; 0: any call.
  bool has_cancelled(std::uint64_t call = 0) const;
  // Returns whether this rank replaced the save with a later one, or came too late to replace it.
  bool has_replaced(std::uint64_t call) const { return replaced_.count(call) != 0; }
  bool has_spared(std::uint64_t call) const { return spared_.count(call) != 0; }
  std::string where() const;  // for texts
  std::string state() const { return slots_.at(kCheckpointer)->state(); }

  RankTroubles troubles;
  // Every hook that has begun, with its call.
  const std::vector<std::pair<std::uint64_t, protocol::Hook>>& hooks_run() const { return hooks_run_; }

  // --- faults ---
  void kill(bool machine);
  void freeze(Duration length);
  void shut_down();
  void actor_dies(const std::string& actor);
  // Stops the trainer from making further calls.
  void stop_calling();
  // Cancels one running call: the oldest if `oldest`, else the newest.
  void cancel_call(bool oldest);

  // --- Network::End ---
  void link_up(int peer) override;
  void link_down(const protocol::PeerDown& down) override;
  void link_message(int peer, const std::shared_ptr<const std::string>& bytes) override;

  // Suspends the running hook.
  void pause(Duration length);

  // --- for its slots ---
  void when_awake(std::function<void()> act);
  void trace(const std::string& text) const;
  SimulatedTrace& recording() { return recording_; }
  void disturb() { ++disturbances_; }
  void hook_runs(std::uint64_t call, protocol::Hook hook) { hooks_run_.emplace_back(call, hook); }
  const std::shared_ptr<Tools>& tools() const { return tools_; }
  protocol::SaveTurns& turns() { return turns_; }
  // Returns whether another background save has taken its turn and has not ended.
  bool another_has_turn(std::uint64_t call) const;
  // Ranks whose connection is down, for machines created later.
  const std::map<int, protocol::PeerDown>& peers_down() const { return down_; }
  void receive(const std::string& slot, const protocol::Received& received);
  void resume(SimulatedSlot& slot, Fiber& fiber);
  void stop_if_idle();
  // The call has returned to the trainer. A background save may still be running.
  void call_returned(std::uint64_t call);
  // Nothing of a background call is left.
  void call_let_go(std::uint64_t call);

 private:
  Verdict before_operation(const char* operation, const std::string& path) override;
  void after_operation(const char* operation, const std::string& path) override;

  void thaw();
  std::uint64_t record_link(const char* what, int peer, bool ok, const std::string& why);

  void next_call();
  void start_call();
  // Chooses the slot of the next call, replaces earlier saves, and lists the calls to wait for.
  void prepare_call(const CallSpec& spec);
  void look_for_the_end();
  void cancel(std::uint64_t call, const std::string& why);
  SimulatedSlot& slot(const std::string& name);
  SimulatedSlot* slot_of(std::uint64_t call);

  World& world_;
  Job& job_;
  const int rank_;
  bool alive_ = true;
  bool frozen_ = false;
  bool stopping_ = false;
  bool done_ = false;
  Duration thaw_at_{0};
  std::deque<std::function<void()>> backlog_;  // callbacks held back while frozen
  std::uint64_t disturbances_ = 0;
  std::vector<Span> absences_;
  std::vector<Duration> coordinator_deaths_;
  std::map<int, std::uint64_t> links_lost_;

  SimulatedTrace recording_;
  std::map<std::string, std::unique_ptr<SimulatedSlot>> slots_;
  SimulatedSlot* running_ = nullptr;  // the slot whose hook is running
  std::map<int, protocol::PeerDown> down_;
  protocol::SaveTurns turns_;  // of background saves

  DiskClient client_;
  const std::shared_ptr<Tools> tools_ = std::make_shared<Tools>();
  std::uint64_t calls_ = 0;                             // made so far
  std::uint64_t calls_max_ = 0;                         // to be made
  std::uint64_t calling_ = 0;                           // the call that blocks the trainer, 0: none
  std::uint64_t slots_taken_ = 0;                       // by background saves
  std::string prepared_;                                // slot of the next call, once chosen; else empty
  std::set<std::uint64_t> awaited_;                     // calls that must end before the next one starts
  std::map<std::uint64_t, std::string> in_background_;  // call -> its slot
  std::set<std::uint64_t> cancelled_, replaced_, spared_;
  std::vector<std::pair<std::uint64_t, protocol::Hook>> hooks_run_;
};

}  // namespace cairn::simulation
