// A state machine whose decisions are recorded in the trace: the state before, the event, the state
// after, and a digest. If the tracer keeps contents, the event itself and the effects are recorded
// too, so that `check_traces` can replay them on another machine.
//
// Events that only concern progress are frequent and decide nothing. They are recorded only if
// contents are kept.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>

#include <cairn/actors/options.hpp>
#include <cairn/actors/protocol/coordinator_machine.hpp>
#include <cairn/actors/protocol/rank_machine.hpp>
#include <cairn/actors/traced.hpp>

namespace cairn {

enum class MachineKind : std::uint8_t { kRank = 1, kCoordinator };

// Records the decisions of one machine. Not thread-safe.
class DecisionRecorder {
 public:
  DecisionRecorder(MachineKind kind, protocol::Identity identity, const RuntimeOptions& options);
  ~DecisionRecorder();  // records that the machine is gone
  DecisionRecorder(const DecisionRecorder&) = delete;
  DecisionRecorder& operator=(const DecisionRecorder&) = delete;

  // Starts recording; called before the machine's first step. `tap` must outlive this object.
  void begin(Tap& tap, const char* state);
  bool wants(const protocol::Event& event) const;
  // Called around each step, in this order; `broke` replaces `after` if the step threw. `state` and
  // `counter` are the machine's at that moment.
  void before(const protocol::Event& event, const char* state, std::uint64_t counter);
  void after(const protocol::Event& event, const protocol::Effects& effects, const char* state, std::uint64_t counter);
  void broke(const protocol::Event& event, const char* why, const char* state, std::uint64_t counter);

 private:
  struct Contents;
  void record(const protocol::Event& event, const char* state, std::uint64_t counter, ObservedEvent observed);

  const MachineKind kind_;
  const protocol::Identity identity_;
  const RuntimeOptions options_;
  const std::uint32_t key_;
  Tap* tap_ = nullptr;  // null: nothing is recorded
  const char* before_ = "";
  std::uint64_t counter_before_ = 0;
  std::unique_ptr<Contents> contents_;  // null: contents are not kept
};

// `Machine` is protocol::RankMachine or protocol::CoordinatorMachine.
template <class Machine>
class Recorded {
 public:
  Recorded(const protocol::Identity& identity, const RuntimeOptions& options)
      : recorder_(std::is_same_v<Machine, protocol::RankMachine> ? MachineKind::kRank : MachineKind::kCoordinator, identity,
                  options),
        machine_(identity, options) {}

  void record_to(Tap& tap) { recorder_.begin(tap, to_string(machine_.state())); }

  protocol::Effects step(const protocol::Event& event) {
    if (!recorder_.wants(event)) return machine_.step(event);
    recorder_.before(event, to_string(machine_.state()), machine_.counter());
    protocol::Effects effects;
    try {
      effects = machine_.step(event);
    } catch (const std::exception& error) {
      recorder_.broke(event, error.what(), to_string(machine_.state()), machine_.counter());
      throw;
    }
    recorder_.after(event, effects, to_string(machine_.state()), machine_.counter());
    return effects;
  }

  auto state() const { return machine_.state(); }
  bool is_idle() const { return machine_.is_idle(); }
  std::uint64_t counter() const { return machine_.counter(); }
  std::uint64_t counter_seen() const { return machine_.counter_seen(); }
  const Machine& machine() const { return machine_; }

 private:
  DecisionRecorder recorder_;
  Machine machine_;
};

}  // namespace cairn
