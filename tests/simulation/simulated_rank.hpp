// One rank process of a simulated job: the shipping runtime with its actors, and a trainer that
// makes one call after another. The trainer does not wait for background saves.
//
// An actor with messages handles one of them after a short time. Which actor comes first, and when,
// is up to the dice of the world. A frozen process runs no actors, and its clock stands still.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/actors/protocol/save_turns.hpp>
#include <cairn/actors/rank_runtime.hpp>
#include <cairn/tests/simulation/agreement.hpp>
#include <cairn/tests/simulation/disk.hpp>
#include <cairn/tests/simulation/network.hpp>
#include <cairn/tests/simulation/rank_watch.hpp>
#include <cairn/tests/simulation/simulated_actors.hpp>
#include <cairn/tests/simulation/simulated_call.hpp>
#include <cairn/tests/simulation/simulated_trace.hpp>

namespace cairn::simulation {

struct CallSpec;

// The checkpointer of calls that the trainer waits for. Names of background saves are derived from
// it.
inline const std::string kCheckpointer = "main";

// An agreement's text of this size cannot be sent.
inline constexpr std::size_t kUnsendableBytes = 65 * 1024;

// Faults in the hooks of one rank. Disk faults are given in percent of the disk operations.
enum class HookFault { kThrows = 1, kThrowsStrangely, kFutureFails, kKilled, kSlow };
struct RankTroubles {
  std::map<std::pair<std::uint64_t, Hook>, HookFault> hooks;  // by call and hook
  std::set<std::uint64_t> differing;            // calls in which its value under one name differs from the other ranks'
  std::set<std::uint64_t> unsendable;           // agreements to which it contributes more than a message may contain
  std::map<std::uint64_t, Duration> deadlines;  // that its caller sets, by call
  int disk_fails = 0;
  int disk_lies = 0;  // the operation happens, but reports an error
  int disk_slow = 0;
};

class SimulatedRank : public Network::End, private DiskClient::Host, private SimulatedLinks::Host, private Observer {
 public:
  SimulatedRank(World& world, Job& job, int rank);
  ~SimulatedRank() override;

  void start();

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
  RankState state() const;
  const RankWatch& watch() const { return watch_; }

  RankTroubles troubles;
  // Every hook that has begun, with its call.
  const std::vector<std::pair<std::uint64_t, Hook>>& hooks_run() const { return hooks_run_; }

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
  void link_down(const LinkDown& down) override;
  void link_message(int peer, const std::shared_ptr<const std::string>& bytes) override;

  // Another rank has passed on what it read for this rank's call.
  void receive(std::uint64_t call);

  // Suspends the running hook.
  void pause(Duration length);

  // --- for its calls ---
  void when_awake(std::function<void()> act);
  void trace(const std::string& text) const;
  void disturb() { ++disturbances_; }
  void hook_runs(std::uint64_t call, Hook hook) { hooks_run_.emplace_back(call, hook); }
  const std::shared_ptr<Tools>& tools() const { return tools_; }
  protocol::SaveTurns& turns() { return turns_; }
  // Returns whether another background save has taken its turn and has not ended.
  bool another_has_turn(std::uint64_t call) const;
  void resume(TrainerThread& thread, Fiber& fiber);
  // The call has returned to the trainer. A background save may still be running.
  void call_returned(std::uint64_t call);
  // Nothing of a background save is left.
  void save_ended(std::uint64_t call);

 private:
  // --- DiskClient::Host ---
  Verdict before_operation(const char* operation, const std::string& path) override;
  void after_operation(const char* operation, const std::string& path) override;
  // --- SimulatedLinks::Host ---
  void send_to(int peer, const SharedBytes& bytes) override;
  void open_link_to(int peer) override;
  void links_begin(const caf::actor& links, const SupervisorActor& supervisor) override;
  void links_end(bool leaves, const std::string& why) override;
  // --- Observer ---
  void on_event(const ObservedEvent& event) noexcept override;

  // Lets the actors run, now or when the next of their delayed messages is due.
  void schedule_actors();
  void run_an_actor();
  // Ends the process. Its actors and hooks have no effect any more.
  void end_process();
  // Lets the remains of a process that has ended come to rest.
  void bury();

  void thaw();
  void count_coordinators(const std::string& how) const;

  void next_call();
  void start_call();
  // Chooses the checkpointer of the next call, replaces earlier saves, and lists the calls to wait
  // for.
  void prepare_call(const CallSpec& spec);
  void look_for_the_end();
  void cancel(std::uint64_t call, const std::string& why);
  SimulatedCall* running_call(std::uint64_t number) const;

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

  const RankClock clock_;
  RankWatch watch_;
  const std::shared_ptr<SimulatedTrace> trace_;
  std::shared_ptr<SimulatedActors> actors_;  // null after the end of the process
  std::unique_ptr<RankRuntime> runtime_;
  SupervisorActor supervisor_;
  caf::actor links_;
  std::uint64_t messages_ = 0;        // that its actors have handled
  std::future<void> stopped_;         // of a shutdown
  bool turn_is_due_ = false;          // an actor will run
  std::optional<Duration> wakes_at_;  // the next delayed message of the actors

  DiskClient client_;
  const std::shared_ptr<Tools> tools_ = std::make_shared<Tools>();
  TrainerThread* running_ = nullptr;  // the thread of the running hook
  protocol::SaveTurns turns_;         // of background saves
  std::vector<std::unique_ptr<SimulatedCall>> all_calls_;
  std::map<std::string, std::uint64_t> ordinals_;  // by checkpointer
  std::uint64_t calls_ = 0;                        // made so far
  std::uint64_t calls_max_ = 0;                    // to be made
  std::uint64_t calling_ = 0;                      // the call that blocks the trainer, 0: none
  std::uint64_t names_taken_ = 0;                  // by background saves
  std::string prepared_;                           // checkpointer of the next call, once chosen; else empty
  std::set<std::uint64_t> awaited_;                // calls that must end before the next one starts
  std::set<std::uint64_t> cancelled_, replaced_, spared_;
  std::vector<std::pair<std::uint64_t, Hook>> hooks_run_;
};

}  // namespace cairn::simulation
