// Converts plans and write results to Protobuf messages that other messages embed, and back. The
// functions are thread-safe if no SharedNames is used by two threads. The message given to
// `to_proto` must be empty.
//
// `from_proto` checks all values, but not whether chunks lie within their tensors. It throws
// kCorrupt, naming the fault, and skips fields of later versions. `to_proto` throws
// kInvalidArgument for an inconsistent plan, such as a user-defined planner might make.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include <cairn/messages/plan.pb.h>
#include <cairn/messages/results.pb.h>
#include <cairn/planning/plan.hpp>

namespace cairn {

// Makes decoded plans share memory for equal names and paths, which take two thirds of a plan's
// memory and most of the time to decode it. The ranks of a pipeline stage have the same names.
class SharedNames {
 public:
  static constexpr std::size_t kSeenMax = 64;  // lists of names that it remembers

  // Sets the names and mappings of `plan`. Throws kCorrupt.
  void decode(const v1::SavePlan& message, SavePlan& plan);

 private:
  struct Seen {
    std::string names, mappings;  // as they are encoded
    SavePlan plan;                // has names and mappings only
  };
  std::deque<Seen> seen_;  // newest last
};

void to_proto(const SavePlan& plan, v1::SavePlan& message);
SavePlan from_proto(const v1::SavePlan& message, SharedNames& seen);
SavePlan from_proto(const v1::SavePlan& message);

void to_proto(const PlanPart& part, v1::PlanPart& message);
PlanPart from_proto(const v1::PlanPart& message);

void to_proto(const LoadPlan& plan, v1::LoadPlan& message);
LoadPlan from_proto(const v1::LoadPlan& message);

void to_proto(const WriteResults& results, v1::WriteResults& message);
WriteResults from_proto(const v1::WriteResults& message);

}  // namespace cairn
