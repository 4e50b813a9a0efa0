// Fault injection for tests of a trainer: ranks die, freeze or fail at a chosen place, without
// changes to the trainer.
//
//   int main() {
//     cairn::allow_injection();   // before the first World
//     ...
//
//   $ cairn-launch -n 4 --keep-going --inject 'kill@hook:write_data,rank=2,nth=3' -- ./trainer
//
// The environment variable CAIRN_INJECT, which `cairn-launch --inject` sets, specifies the faults:
//
//   spec    = rule { ";" rule }
//   rule    = action "@" place { "," filter }       kill@hook:write_data,rank=2
//
//   action    kill             kills the process, by SIGKILL
//             freeze           stops the process, by SIGSTOP; SIGCONT resumes it
//             throw            makes the hook or store operation throw; at a message, kills the
//                              actor that handles it
//             delay=TIME       delays this place by TIME: 200ms, 5s, 1min
//             drop-link        closes the connections to all other ranks; drop-link=RANK: to one
//             disk-full        makes the store operation fail with kNoSpace
//             short-write      writes half of the bytes, then fails with kUnavailable
//             read-flip        flips one bit of the data read
//
//   place     send:MESSAGE     before this message is sent, to another rank or to this one
//             receive:MESSAGE  before this message is handled
//             hook:HOOK        before this hook of a planner, writer, reader or Stateful object
//                              ("begin") runs
//             phase:PHASE      before the first hook of this phase of a save or load
//             store:OPERATION  before this operation of a store or of its writers runs; OPERATION
//                              is the name of the method
//
//   filter    rank=N           on this rank only (default: on every rank)
//             nth=N            the Nth time that the rank reaches the place (default: 1);
//                              nth=all: every time
//
// docs/protocol.md lists messages, hooks and phases; storage/store.hpp lists the operations. The
// error for an unknown name also lists all valid ones. If the variable RANK is set, `rank=N`
// selects the process whose RANK is N, even if that process has another rank in one of its worlds.
// If RANK is not set, `rank=N` means rank N of the world; a rule for a store operation must then
// not contain `rank`, because it would never apply. drop-link does not apply to store operations;
// disk-full, short-write and read-flip apply only to them. Each fault prints one line on standard
// error.
#pragma once

namespace cairn {

// Enables the faults in CAIRN_INJECT for worlds made and stores opened after this call. In a
// process that never calls `allow_injection`, CAIRN_INJECT has no effect except one line on
// standard error. Each call reads the variable again and restarts the counts for `nth`. If
// CAIRN_INJECT is unset, disables all faults. Throws kInvalidArgument if the value is malformed;
// the exception's text gives the rule, its wrong part, and what is allowed instead. Thread-safe.
void allow_injection();

}  // namespace cairn
