// Whether a plan makes sense by itself: names that are there, dimensions that agree. User-defined planners and writers make plans,
// and what they got wrong is to be their failure, not one of whoever works with the plan later.
#pragma once

#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

// Throws kInvalidArgument, saying which item is wrong in what. `hook`: who returned the plan.
void check_plan(const SavePlan& plan, const char* hook);
void check_plan(const LoadPlan& plan, const char* hook);

}  // namespace cairn::protocol
