// What a seed does with a world: how many ranks, which calls, and what goes wrong when.
#pragma once

#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {

// A job with troubles. `size`: how many ranks it has; 0: as the dice say.
JobSpec troubled_job(Dice& dice, std::uint64_t& last_content, int size = 0);
// Now and then, to such a job, one of the troubles that those hardly ever come to.
void plan_rare_troubles(Dice& dice, JobSpec& job);
// Now and then, callers that want their calls to end.
void plan_cancellations(Dice& dice, JobSpec& job);
// Now and then, a trainer that does not wait for its saves, and replaces and cancels those in flight.
void plan_background_saves(Dice& dice, JobSpec& job, std::uint64_t& last_content);
// Now and then, something to agree on after all that, and what befalls the ranks meanwhile.
void plan_agreements(Dice& dice, JobSpec& job);
// One in which nothing goes wrong: for each place a load where there is something to load, two saves, a load.
JobSpec quiet_job(Dice& dice, std::uint64_t& last_content, int size, const Ledger& ledger);

}  // namespace cairn::simulation
