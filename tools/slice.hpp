// Parses slices of tensors as users write them. Pure.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn::tools {

struct Slice {
  Box box;
  std::vector<bool> is_index;  // by dimension: given as one number, so the result lacks the dimension
};

// Parses a Python slice such as "0:4,:": a range, ":" or a number per dimension; negative numbers
// count from the end. "..." stands for the dimensions between. Dimensions omitted at the end are
// taken whole. Ranges are clipped to the tensor. Throws WrongUse for an index out of range, too
// many dimensions, or steps.
Slice parse_slice(const std::string& text, const Extents& size);

}  // namespace cairn::tools
