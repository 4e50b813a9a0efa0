// Parts of tensors as people write them. Pure.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn::tools {

struct Slice {
  Box box;
  std::vector<bool> is_index;  // by dimension: given by one number, so that what is shown has one dimension less
};

// "0:4,:" as Python has it: a range, ":" or a number for each dimension, counted from the end if negative; "..." stands for those
// between, what is left out at the end is taken whole. Ranges are cut to the tensor. Throws WrongUse for what cannot be meant: a number
// outside, too many dimensions, steps.
Slice parse_slice(const std::string& text, const Extents& size);

}  // namespace cairn::tools
