// Checks that a plan is consistent: names that exist, dimensions that agree. User-defined planners
// and writers make plans. Their mistakes must be reported as failures of the hook that returned the
// plan, not of the code that uses it later.
#pragma once

#include <cairn/planning/plan.hpp>

namespace cairn::protocol {

// Throws kInvalidArgument if the plan is not consistent. The text names the bad item, the reason,
// and `hook`, which returned the plan.
void check_plan(const SavePlan& plan, const char* hook);
void check_plan(const LoadPlan& plan, const char* hook);

}  // namespace cairn::protocol
