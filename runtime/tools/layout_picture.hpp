// Draws who holds which box of a tensor. Pure text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn::tools {

struct LabelledBox {
  Box box;
  std::string label;  // short: the rank
};

// The boxes to scale, a line of text each: of a tensor with two dimensions a grid with rows downwards, of one with one dimension a bar; offsets
// stand where boxes begin and end. Nothing for other tensors, for those without elements, and where so many boxes do not fit into
// `columns` (of the terminal) and `rows`.
std::optional<std::vector<std::string>> draw_boxes(const Extents& size, const std::vector<LabelledBox>& boxes, int columns,
                                                   int rows);

}  // namespace cairn::tools
