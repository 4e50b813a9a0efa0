// Fault injection: rules that say which fault happens where, and the injector that applies them.
// The grammar is in <cairn/runtime/testing/injection.hpp>, which also decides whether injection is
// on. If injection is off, all pointers to an injector are null.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

// The fault to inject.
enum class FaultAction : std::uint8_t { kKill = 1, kFreeze, kThrow, kDelay, kDropLink, kDiskFull, kShortWrite, kReadFlip };
// The kind of place where the fault happens.
enum class FaultSite : std::uint8_t { kSend = 1, kReceive, kHook, kPhase, kStore };

struct InjectionRule {
  FaultAction action = FaultAction::kKill;
  FaultSite site = FaultSite::kHook;
  std::string name;         // name of the message, hook, phase or store operation
  std::optional<int> rank;  // absent: every rank
  std::uint64_t nth = 1;    // the occurrence on a rank, from 1; 0: every occurrence
  std::chrono::milliseconds delay{0};
  std::optional<int> peer;  // for kDropLink: the peer whose connection is dropped; absent: all peers
  std::string text;         // the rule as written
};

// The valid names for each kind of place.
struct InjectionNames {
  std::vector<std::string> messages;
  std::vector<std::string> hooks;
  std::vector<std::string> phases;
  std::vector<std::string> operations;
};

// Throws kInvalidArgument if `spec` is invalid. The error gives the rule, its wrong part, and what
// is allowed instead.
std::vector<InjectionRule> parse_injection(std::string_view spec, const InjectionNames& names);

// The exception of the action `throw`. Its code is kUnavailable, as for a transient I/O error.
class InjectedFault : public Error {
 public:
  explicit InjectedFault(const std::string& what) : Error(ErrorCode::kUnavailable, what) {}
};

// The injector's effects on its process. Tests substitute their own.
struct InjectorHands {
  std::function<void(int signal)> raise;                  // signals this thread; SIGKILL and SIGSTOP act on the whole process
  std::function<void(std::chrono::milliseconds)> sleep;   // suspends the calling thread
  std::function<void(const std::string& line)> announce;  // called before each rule's effect
};
InjectorHands system_hands();

// Applies rules when ranks pass injection points. Thread-safe.
class Injector {
 public:
  // `process_rank` is the rank that the launcher gave this process. If present, rules refer to this
  // rank, even if the process has another rank in a world. Pass nothing if the launcher gave no
  // rank, as in tests that run many ranks in one process.
  Injector(std::vector<InjectionRule> rules, std::optional<int> process_rank, InjectorHands hands = system_hands());

  // Replaces all rules and resets all counts.
  void replace(std::vector<InjectionRule> rules);

  // Must be called when `rank` passes an injection point. Counts the occurrence. Executes kills,
  // freezes and delays, and throws InjectedFault for the action `throw`. Returns the rules that the
  // caller must execute: dropped connections and store faults. `rank` is ignored if the injector
  // has a `process_rank`; otherwise -1 means that only rules for every rank apply.
  std::vector<InjectionRule> pass(FaultSite site, std::string_view name, int rank);
  // Does the same for a hook of attempt `counter` of `checkpointer`. The first hook of a phase also
  // passes that phase's injection point. `phase` is "" for a hook that belongs to no phase.
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
  Mutex mutex_;
  std::vector<Armed> armed_ CAIRN_GUARDED_BY(mutex_);
  // The last attempt and the phases begun in it, by rank and checkpointer.
  std::map<std::pair<int, std::string>, std::pair<std::uint64_t, std::set<std::string>>> begun_ CAIRN_GUARDED_BY(mutex_);
};

// Returns the injector for worlds and stores made from now on; existing ones keep theirs. Null
// means no injection, which is the default.
std::shared_ptr<Injector> active_injector();
void set_active_injector(std::shared_ptr<Injector> injector);
// Returns whether this program allows injection: whether it has called `set_active_injector`.
bool injection_is_allowed();

}  // namespace cairn
