// Draws, as plain text, which rank holds which box of a tensor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <cairn/planning/box.hpp>

namespace cairn::tools {

struct LabelledBox {
  Box box;
  std::string label;  // a short text, such as the rank
};

// Draws the boxes to scale and returns the lines of text. A tensor with two dimensions becomes a
// grid with rows downwards, and a tensor with one dimension a bar. Offsets mark where boxes begin
// and end. Returns nothing for other tensors, for empty ones, and if the boxes do not fit into
// `columns` (of the terminal) and `rows`.
std::optional<std::vector<std::string>> draw_boxes(const Extents& size, const std::vector<LabelledBox>& boxes, int columns,
                                                   int rows);

}  // namespace cairn::tools
