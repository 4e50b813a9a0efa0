// A state machine whose every decision goes into the trace: its state before, the event, its state after, and a digest; where the tracer
// keeps contents, the event itself and what was decided too, so that `check_traces` can have another machine decide again.
//
// What only tells how far a call is decides nothing, and comes again and again: it is recorded with contents only.
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

// What is recorded of one machine. Not thread-safe.
class DecisionRecorder {
 public:
  DecisionRecorder(MachineKind kind, protocol::Identity identity, const RuntimeOptions& options);
  ~DecisionRecorder();  // says that the machine is gone
  DecisionRecorder(const DecisionRecorder&) = delete;
  DecisionRecorder& operator=(const DecisionRecorder&) = delete;

  // From now on; before the machine's first step. `tap`: lives longer.
  void begin(Tap& tap, const char* state);
  bool wants(const protocol::Event& event) const;
  // Around a step, in this order. `state` and `counter`: of the machine at that moment.
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
  std::unique_ptr<Contents> contents_;  // null: they are not kept
};

// `Machine`: protocol::RankMachine or protocol::CoordinatorMachine.
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
