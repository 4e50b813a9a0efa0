// What planners and writers do about a tensor with missing or doubled parts.
#pragma once

#include <string>

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Throws kMismatch, listing faults, unless the chunks of each tensor tile it exactly. `what` begins the text.
void require_coverage(const Metadata& metadata, const std::string& what);

}  // namespace cairn
