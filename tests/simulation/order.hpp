// A newer save is never overtaken by an older one: what a job's trainers called first is published first, also where saves are in
// flight together, and whatever was replaced or cancelled.
#pragma once

namespace cairn::simulation {

class Coverage;
class Job;
class Ledger;

// Of a job that is over: that its saves, wherever they went, were published in the order of the calls; and that each place holds the
// last of its saves that a call has reported as committed, or a later one, of whichever job. Counts what became of saves that others were made in the place of.
void check_order(Job& job, Ledger& ledger, Coverage& coverage);

}  // namespace cairn::simulation
