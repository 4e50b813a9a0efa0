// Planning is the same work for the same local plans: remembers the last result.
#pragma once

#include <optional>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/planning/global_plan.hpp>

namespace cairn {

class GlobalPlanMemo {
 public:
  // Plans as create_global_save_plan does, and throws its errors; also kMismatch if chunks do not tile their tensors. The digest
  // of a plan leaves out the values of bytes objects. So they are compared between the ranks every time, and a remembered plan is
  // returned with their current hashes and sizes.
  GlobalSavePlan plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options);

 private:
  std::optional<Digest> key_;  // of the local plans and options that gave `result_`
  GlobalSavePlan result_;
};

}  // namespace cairn
