// Caches the last global plan, since equal local plans give equal global plans.
#pragma once

#include <optional>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/planning/global_plan.hpp>

namespace cairn {

class GlobalPlanMemo {
 public:
  // Plans as create_global_save_plan does and throws the same errors, and kMismatch if chunks do
  // not tile their tensors. A plan's digest does not cover the values of bytes objects. So every
  // call compares those between ranks, and a cached plan is returned with their current hashes and
  // sizes.
  GlobalSavePlan plan(std::vector<SavePlan> local_plans, const GlobalPlanOptions& options);

 private:
  std::optional<Digest> key_;  // of the local plans and options that produced `result_`
  GlobalSavePlan result_;
};

}  // namespace cairn
