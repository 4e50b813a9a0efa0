// One rank process of a simulated job: the shipping state machines, hooks that run one after the other on the trainer's
// "thread", and a trainer that makes one call after the other. It does what the rank supervisor and the coordinator actor do
// around the machines.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/tests/simulation/agreement.hpp>
#include <cairn/tests/simulation/disk.hpp>
#include <cairn/tests/simulation/fiber.hpp>
#include <cairn/tests/simulation/network.hpp>
#include <cairn/tests/simulation/rank_hooks.hpp>

namespace cairn::simulation {

class Job;
class World;

// What goes wrong in hooks of one rank; the disk's troubles are in percent of its operations.
enum class HookFault { kThrows = 1, kThrowsStrangely, kFutureFails, kKilled, kSlow };
struct RankTroubles {
  std::map<std::pair<std::uint64_t, protocol::Hook>, HookFault> hooks;  // by call and hook
  std::set<std::uint64_t> differing;            // calls in which it holds another value than the other ranks under one name
  std::map<std::uint64_t, Duration> deadlines;  // that its caller sets for a call
  int disk_fails = 0;
  int disk_lies = 0;  // it happened, and an error was reported
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
  // It has made all its calls, or never will.
  bool ended() const { return !alive_ || done_; }
  // Between two saves or loads nothing of them is left; otherwise says what is.
  std::string leftover() const;
  std::uint64_t calls_ended() const { return calls_ - (call_ ? 1 : 0); }
  std::uint64_t disturbances() const { return disturbances_; }
  // Nothing has befallen it, and no connection of its was lost.
  bool is_undisturbed() const { return disturbances_ == 0 && links_lost_.empty(); }
  // When it was frozen, and from when it was dead or leaving.
  const std::vector<Span>& absences() const { return absences_; }
  // When its coordinator actor died.
  const std::vector<Duration>& coordinator_deaths() const { return coordinator_deaths_; }
  // Whether its caller has ended a call, or has set a deadline for one.
  bool has_cancelled() const { return cancelled_ || !troubles.deadlines.empty(); }
  std::string where() const;  // for texts

  RankTroubles troubles;
  // Every hook that began, with the call it belonged to.
  const std::vector<std::pair<std::uint64_t, protocol::Hook>>& hooks_run() const { return hooks_run_; }

  // --- what may befall it ---
  void kill(bool machine);
  void freeze(Duration length);
  void shut_down();
  void actor_dies(const std::string& actor);
  // The trainer makes no further call.
  void stop_calling();
  // The trainer wants the running call to end.
  void cancel_call();

  // --- Network::End ---
  void link_up(int peer) override;
  void link_down(const protocol::PeerDown& down) override;
  void link_message(int peer, const std::shared_ptr<const std::string>& bytes) override;

  // Suspends the running hook.
  void pause(Duration length);

 private:
  struct QueuedHook {
    protocol::RunHook hook;
    std::uint64_t coordinator = 0;  // life of the coordinator that asked, 0: the rank's own
    std::shared_ptr<RunningCall> call;
  };

  Verdict before_operation(const char* operation, const std::string& path) override;
  void after_operation(const char* operation, const std::string& path) override;

  void when_awake(std::function<void()> act);
  void thaw();

  void next_call();
  void start_call();
  void end_call(const protocol::Finished& finished);
  // Who told it so, -1 if nobody did.
  int told_by(const protocol::Finished& finished) const;
  void judge(const protocol::Finished& finished, bool heard);

  void step_rank(const protocol::Event& event);
  void step_coordinator(const protocol::Event& event);
  void perform(protocol::Effects effects, bool for_coordinator);
  void send(const protocol::Send& message);
  void receive(const protocol::Received& received);
  void show(const protocol::JobProgress& job);
  void start_timer(const protocol::StartTimer& timer);
  void run_for_coordinator(const protocol::RunHook& hook, std::uint64_t life);
  void queue(QueuedHook hook);
  void start_hook();
  void run_body(QueuedHook& queued, protocol::HookDone& done);
  void resume_hook();
  void end_hook();
  void stop_if_idle();
  void trace(const std::string& text) const;
  void count_coordinator(const char* how);

  World& world_;
  Job& job_;
  const int rank_;
  bool alive_ = true;
  bool frozen_ = false;
  bool stopping_ = false;
  bool done_ = false;
  bool cancelled_ = false;
  Duration thaw_at_{0};
  std::deque<std::function<void()>> backlog_;  // while frozen
  std::uint64_t disturbances_ = 0;
  std::vector<Span> absences_;
  std::vector<Duration> coordinator_deaths_;
  std::map<int, std::uint64_t> links_lost_;

  protocol::RankMachine machine_;
  std::unique_ptr<protocol::CoordinatorMachine> coordinator_;
  std::uint64_t coordinator_life_ = 1;
  std::map<protocol::Timer, std::uint64_t> timers_;
  std::uint64_t last_timer_ = 0;

  DiskClient client_;
  const std::shared_ptr<Tools> tools_ = std::make_shared<Tools>();
  std::shared_ptr<RunningCall> call_;
  std::uint64_t calls_ = 0;      // made so far
  std::uint64_t calls_max_ = 0;  // to be made
  std::deque<QueuedHook> hooks_;
  std::unique_ptr<Fiber> fiber_;
  std::optional<QueuedHook> running_;
  protocol::HookDone result_;
  std::vector<std::pair<std::uint64_t, protocol::Hook>> hooks_run_;

  // Of the running call, for the judgement at its end.
  std::vector<std::pair<int, protocol::Outcome>> outcomes_;  // and who sent it
  bool own_hook_failed_ = false;
  Duration call_began_{0};
};

}  // namespace cairn::simulation
