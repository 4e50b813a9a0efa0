// Checks that an older save never overtakes a newer one: saves are published in the order in which
// the job's trainers called them, even if they are in flight together, replaced or cancelled.
#pragma once

namespace cairn::simulation {

class Coverage;
class Job;
class Ledger;

// Checks a job that has ended. Its saves, at all places, must have been published in the order of
// the calls. Each place must hold the last of the job's saves reported as committed there, or a
// later publication of any job. Counts in `coverage` saves that some ranks replaced and others did
// not.
void check_order(Job& job, Ledger& ledger, Coverage& coverage);

}  // namespace cairn::simulation
