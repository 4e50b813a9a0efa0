// Chooses what a seed does with a world: the number of ranks, the calls, and what goes wrong when.
#pragma once

#include <cairn/tests/simulation/world.hpp>

namespace cairn::simulation {

// Returns a job with troubles. `size` is the number of ranks; 0: chosen by `dice`.
JobSpec troubled_job(Dice& dice, std::uint64_t& last_content, int size = 0);
// Sometimes adds a trouble that `troubled_job` hardly ever produces.
void plan_rare_troubles(Dice& dice, JobSpec& job);
// Sometimes adds callers that cancel their calls or set deadlines.
void plan_cancellations(Dice& dice, JobSpec& job);
// Sometimes adds background saves, and trainers that replace or cancel saves in flight.
void plan_background_saves(Dice& dice, JobSpec& job, std::uint64_t& last_content);
// Sometimes adds agreements after all other calls, and troubles during them.
void plan_agreements(Dice& dice, JobSpec& job);
// Sometimes adds an agreement to which one rank contributes a text that cannot be sent.
void plan_unsendable_text(Dice& dice, JobSpec& job);
// Returns a job in which nothing goes wrong: for each place, a load if there is a checkpoint, two
// saves and a load.
JobSpec quiet_job(Dice& dice, std::uint64_t& last_content, int size, const Ledger& ledger);

}  // namespace cairn::simulation
