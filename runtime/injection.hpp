// Testing a trainer against failures: makes ranks die, freeze or fail on purpose, at a chosen place, without a change to the trainer.
//
//   int main() {
//     cairn::allow_injection();   // before the first World
//     ...
//
//   $ cairn-launch -n 4 --keep-going --inject 'kill@hook:write_data,rank=2,nth=3' -- ./trainer
//
// What goes wrong stands in the environment variable CAIRN_INJECT, which `cairn-launch --inject` sets:
//
//   spec    = rule { ";" rule }
//   rule    = action "@" place { "," filter }       kill@hook:write_data,rank=2
//
//   action    kill             the process ends at once, by SIGKILL
//             freeze           the process stops, by SIGSTOP; SIGCONT lets it go on
//             throw            the hook or store operation fails with an exception; at a message, the actor that handles it dies
//             delay=TIME       this place takes longer by TIME: 200ms, 5s, 1min
//             drop-link        the connections to all other ranks close; drop-link=RANK: those to one
//             disk-full        the store operation fails with kNoSpace
//             short-write      half of the bytes are written, then the write fails with kUnavailable
//             read-flip        one bit of what is read is wrong
//
//   place     send:MESSAGE     before this message is sent, to another rank or to the own one
//             receive:MESSAGE  before it is handled
//             hook:HOOK        before this hook of a planner, writer, reader or Stateful object ("begin") runs
//             phase:PHASE      before the first hook of this phase of a save or load
//             store:OPERATION  before this operation of a store or of its writers, by the names of their methods
//
//   filter    rank=N           on this rank only (default: on every rank)
//             nth=N            the Nth time that the rank comes there (default: 1); nth=all: every time
//
// docs/protocol.md has messages, hooks and phases, storage/store.hpp the operations; all of them stand in the error for an unknown one.
// `rank` is the RANK that the launcher gave, and stays so whatever worlds the process makes; in a process without RANK it is the rank
// in the world, and rules for store operations must leave it out. drop-link is not for stores; disk-full, short-write and read-flip
// are for stores alone. Each fault is announced by one line on standard error.
#pragma once

namespace cairn {

// Worlds made and stores opened after this meet the faults of CAIRN_INJECT. Without it the variable does nothing, but for one line on
// standard error; with it, and without the variable, nothing changes. Reads the variable anew each time; counts begin anew. Throws
// kInvalidArgument, with the position and what is allowed there, if it is not understood. Thread-safe.
void allow_injection();

}  // namespace cairn
