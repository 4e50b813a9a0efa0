// Ranks that can talk end a call alike: with the same failures and the same word on whether the checkpoint exists, whoever told
// them, and whatever befell the others.
#pragma once

#include <cairn/base/clock.hpp>

namespace cairn::simulation {

class Job;
class Ledger;

// From `from` to `until`.
struct Span {
  Duration from{0};
  Duration until{0};
  bool meets(const Span& other) const { return from <= other.until && other.from <= until; }
};

// Compares how every two ranks of a job that is over ended each call, if from the moment the first of them made it to the moment the
// second of them ended it both were alive and awake, and nothing kept them from each other for longer than a broken connection does.
// Where one made the call after the other had ended it, both must have been able to talk to the coordinator too, who tells that one.
// And the coordinator's actor must not have died between the ends, nor when the first was on its way: the next one knows nothing of a
// call that has ended.
// Ranks that have ended one call differently, since they could not talk, may be out of step from then on: what one of them calls
// next, another may still be in. After that they are compared only where they were in one attempt. Accuses once for each call.
void check_agreement(Job& job, Ledger& ledger);

}  // namespace cairn::simulation
