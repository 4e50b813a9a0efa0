// Checks that ranks which can talk to each other end a call the same way: with the same failures
// and the same answer on whether the checkpoint exists. It does not matter which rank told them, or
// what happened to the other ranks.
#pragma once

#include <cairn/base/clock.hpp>

namespace cairn::simulation {

class Job;
class Ledger;

// The interval from `from` to `until`, both included.
struct Span {
  Duration from{0};
  Duration until{0};
  bool meets(const Span& other) const { return from <= other.until && other.from <= until; }
};

// Compares the results of every two ranks for each call of a job that has ended. A pair is compared
// only if both ranks were alive and running, and no block lay between them, from the moment when
// the first of the two made the call to the moment when the second ended it. A reset connection is
// no excuse.
// A rank that cannot send its text cannot talk.
// If one rank made the call after the other had ended it, both must also have been able to talk to
// the coordinator, which tells the late one the outcome. The coordinator's actor must not have died
// between the two ends, or while the first outcome was in flight: a new coordinator actor knows
// nothing of an ended call.
// After ranks have ended a call differently because they could not talk, they may be out of step:
// one rank may still be in a call that another has left. From then on, ranks are compared only
// within one attempt. Reports at most one violation for each call.
void check_agreement(Job& job, Ledger& ledger);

}  // namespace cairn::simulation
