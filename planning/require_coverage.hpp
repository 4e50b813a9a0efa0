// A check for missing or overlapping parts of tensors, shared by planners and writers.
#pragma once

#include <string>

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Throws kMismatch, listing the first 20 faults, unless the chunks of each tensor tile it exactly.
// The error text begins with `what`.
void require_coverage(const Metadata& metadata, const std::string& what);

}  // namespace cairn
