// The operations, states, milestones, deadlines and messages of a call's state machines. Trace
// files store these enums as numbers: append new values, and never change or remove one.
#pragma once

#include <cstdint>

namespace cairn {

// kAgree is an agreement. Each rank sends a text in its Join. The coordinator makes one answer from
// all texts, and sends it in the Outcome. An agreement that succeeds needs no other messages.
enum class Operation : std::uint8_t { kSave = 1, kLoad, kAgree };

// The states of RankMachine; actors/protocol/rank_machine.hpp has the transitions.
enum class RankState : std::uint8_t { kIdle = 1, kJoining, kPreparing, kPlanned, kMoving, kReported, kEnding };

// The states of CoordinatorMachine; actors/protocol/coordinator_machine.hpp has the transitions.
enum class CoordinatorState : std::uint8_t {
  kIdle = 1,
  kJoining,
  kLocalPlans,
  kGlobalPlan,
  kMoving,
  kFinishing,
  kSettling,
  kDeciding,
};

// The states of a successor: a rank that ends a call because the call's coordinator was lost.
enum class SuccessionState : std::uint8_t { kIdle = 1, kGathering, kAskingStore };

// The milestones of a call. A milestone does not change the state of a machine.
enum class CallTurn : std::uint8_t {
  kCoordinatorLost = 1,
  kCoordinatorFound,
  kResigned,  // the coordinator gave up the call: its process had been frozen, and other ranks had given up on the coordinator
};

enum class Timer : std::uint8_t {
  kAnswer = 1,  // a rank waits for the next message from the coordinator or its successor
  kPhase,       // the coordinator waits for answers of the ranks, or for its own task
  kProbe,       // the coordinator waits for a sign of life from ranks that have not joined or that were lost before the call
  kSuccession,  // a successor waits for the ranks' answers, and then for the store's answer
  kCall,        // the deadline that the caller on this rank has set
  kProgress,    // not a deadline: a rank reports its progress
  kWaiting,     // not a deadline: the coordinator logs which ranks are missing
};

// The messages between ranks; messages/control.hpp has their contents.
enum class MessageKind : std::uint8_t {
  kJoin = 1,
  kBegin,
  kLocalSavePlan,
  kSameSavePlan,
  kNeedLocalPlan,
  kGlobalSavePlan,
  kWritten,
  kLocalLoadPlan,
  kGlobalLoadPlan,
  kReadDone,
  kPhaseFailed,
  kOutcome,
  kCancel,
  kCoordinatorDown,
  kStopPhase,
  kPhaseStopped,
  kWithdraw,
  kUnreadable,
  kStatusReply,
  kStatusRequest,
  kFollowOther,
  kProgress,
  kJobProgress,
};

const char* to_string(Operation operation) noexcept;  // "save", "load", "agreement"
const char* to_string(RankState state) noexcept;      // "moving"
const char* to_string(CoordinatorState state) noexcept;
const char* to_string(SuccessionState state) noexcept;
const char* to_string(CallTurn turn) noexcept;     // an action of the rank or the coordinator: "lost its coordinator"
const char* to_string(MessageKind kind) noexcept;  // "Written"
const char* to_string(Timer timer) noexcept;       // the awaited event: "the ranks' answers"

}  // namespace cairn
