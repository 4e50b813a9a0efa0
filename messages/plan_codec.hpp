// Converts plans and write results to Protobuf messages that other messages embed, and back. The
// functions are thread-safe. The message given to `to_proto` must be empty.
//
// `from_proto` checks all values, but not whether chunks lie within their tensors. It throws
// kCorrupt, naming the fault, and skips fields of later versions. `to_proto` throws
// kInvalidArgument for an inconsistent plan, such as a user-defined planner might make.
#pragma once

#include <cairn/messages/plan.pb.h>
#include <cairn/messages/results.pb.h>
#include <cairn/planning/plan.hpp>

namespace cairn {

void to_proto(const SavePlan& plan, v1::SavePlan& message);
SavePlan from_proto(const v1::SavePlan& message);

void to_proto(const LoadPlan& plan, v1::LoadPlan& message);
LoadPlan from_proto(const v1::LoadPlan& message);

void to_proto(const WriteResults& results, v1::WriteResults& message);
WriteResults from_proto(const v1::WriteResults& message);

}  // namespace cairn
