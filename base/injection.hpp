// Faults on purpose: the rules that say what goes wrong where, and the injector that looks for them wherever the runtime passes a
// place that can be named. <cairn/runtime/injection.hpp> has the grammar, and decides whether any of this is in use at all: where it
// is not, every holder's pointer to an injector is null.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>

namespace cairn {

// What goes wrong.
enum class FaultAction : std::uint8_t { kKill = 1, kFreeze, kThrow, kDelay, kDropLink, kDiskFull, kShortWrite, kReadFlip };
// What kind of place it goes wrong at.
enum class FaultSite : std::uint8_t { kSend = 1, kReceive, kHook, kPhase, kStore };

struct InjectionRule {
  FaultAction action = FaultAction::kKill;
  FaultSite site = FaultSite::kHook;
  std::string name;         // of the message, hook, phase or store operation
  std::optional<int> rank;  // absent: every rank
  std::uint64_t nth = 1;    // which occurrence on its rank, from 1; 0: all of them
  std::chrono::milliseconds delay{0};
  std::optional<int> peer;  // of kDropLink: whose link; absent: all
  std::string text;         // as it was written
};

// What there is to name at each kind of place.
struct InjectionNames {
  std::vector<std::string> messages;
  std::vector<std::string> hooks;
  std::vector<std::string> phases;
  std::vector<std::string> operations;
};

// Throws kInvalidArgument, saying at which character of `spec` (from 1) it does not understand what, and what is allowed there.
std::vector<InjectionRule> parse_injection(std::string_view spec, const InjectionNames& names);

// What the action `throw` throws. kUnavailable, as an I/O error that may pass.
class InjectedFault : public Error {
 public:
  explicit InjectedFault(const std::string& what) : Error(ErrorCode::kUnavailable, what) {}
};

// How an injector acts on its process; tests have others.
struct InjectorHands {
  std::function<void(int signal)> raise;                  // to the whole process
  std::function<void(std::chrono::milliseconds)> sleep;   // the calling thread
  std::function<void(const std::string& line)> announce;  // before anything else happens
};
InjectorHands system_hands();

// Thread-safe.
class Injector {
 public:
  // `process_rank`: the rank that the launcher gave this process, which then holds whatever the rank in a world is; absent where it
  // gave none, as in tests that hold many ranks.
  Injector(std::vector<InjectionRule> rules, std::optional<int> process_rank, InjectorHands hands = system_hands());

  // Takes the place of all rules; every count begins anew.
  void replace(std::vector<InjectionRule> rules);

  // A rank passes a place. Counts it; kills, freezes and delays right here, and throws InjectedFault. What is left for the caller
  // to do is returned: links to drop, faults of the store. `rank`: -1 if the caller does not know; then only rules for every rank
  // hold.
  std::vector<InjectionRule> pass(FaultSite site, std::string_view name, int rank);
  // The same for a hook of attempt `counter` of `checkpointer`. The first one of a phase begins that phase: then both places are
  // passed. `phase`: "" for a hook that belongs to none.
  std::vector<InjectionRule> pass_hook(std::string_view hook, std::string_view phase, const std::string& checkpointer,
                                       std::uint64_t counter, int rank);

 private:
  struct Armed {
    InjectionRule rule;
    std::map<int, std::uint64_t> occurrences;  // by rank
  };
  std::vector<InjectionRule> take(FaultSite site, std::string_view name, int rank);

  const std::optional<int> process_rank_;
  const InjectorHands hands_;
  std::mutex mutex_;
  std::vector<Armed> armed_;
  // By rank and checkpointer: its last attempt, and the phases that have begun there.
  std::map<std::pair<int, std::string>, std::pair<std::uint64_t, std::set<std::string>>> begun_;
};

// The injector of this process, for whatever is made from now on: worlds and stores keep the one they began with. Null: nothing is
// injected, which is how every program begins.
std::shared_ptr<Injector> active_injector();
void set_active_injector(std::shared_ptr<Injector> injector);

}  // namespace cairn
