#include <cairn/tools/layout_picture.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

namespace cairn::tools {
namespace {

// The neighbours to which a canvas cell is connected by lines; flags.
constexpr unsigned kUp = 1, kDown = 2, kLeft = 4, kRight = 8;

const char* line_of(unsigned joined) {
  static constexpr const char* kLines[16] = {" ", "╵", "╷", "│", "╴", "┘", "┐", "┤", "╶", "└", "┌", "├", "─", "┴", "┬", "┼"};
  return kLines[joined];
}

// Maps offsets at which boxes begin or end to canvas positions: to scale, but at least `gap` apart.
using Axis = std::map<std::int64_t, int>;
std::optional<Axis> lay_out(std::int64_t size, const std::vector<LabelledBox>& boxes, std::size_t dim, int last, int gap) {
  Axis axis{{0, 0}, {size, last}};
  if (dim < boxes.front().box.offsets.size())
    for (const auto& [box, label] : boxes) {
      axis[box.offsets[dim]] = 0;
      axis[box.offsets[dim] + box.sizes[dim]] = 0;
    }
  if (static_cast<std::int64_t>(axis.size() - 1) * gap > last) return std::nullopt;
  int at = -gap;
  for (auto& [offset, place] : axis) {
    place = std::max(at + gap, static_cast<int>(std::lround(static_cast<double>(offset) / static_cast<double>(size) * last)));
    at = place;
  }
  int limit = last;
  for (auto entry = axis.rbegin(); entry != axis.rend(); ++entry, limit -= gap) {
    entry->second = std::min(entry->second, limit);
    limit = entry->second;
  }
  return axis;
}

class Canvas {
 public:
  Canvas(int width, int height)
      : joined_(static_cast<std::size_t>(height), std::vector<unsigned>(static_cast<std::size_t>(width))),
        text_(static_cast<std::size_t>(height), std::string(static_cast<std::size_t>(width), '\0')) {}

  void rectangle(int left, int top, int right, int bottom) {
    for (int x = left; x < right; ++x)
      for (const int y : {top, bottom}) {
        joined(x, y) |= kRight;
        joined(x + 1, y) |= kLeft;
      }
    for (int y = top; y < bottom; ++y)
      for (const int x : {left, right}) {
        joined(x, y) |= kDown;
        joined(x, y + 1) |= kUp;
      }
  }
  void write(int x, int y, const std::string& text) {
    text_[static_cast<std::size_t>(y)].replace(static_cast<std::size_t>(x), text.size(), text);
  }
  std::string line(int y) const {
    std::string line;
    for (std::size_t x = 0; x < joined_.front().size(); ++x) {
      const char letter = text_[static_cast<std::size_t>(y)][x];
      line += letter != '\0' ? std::string(1, letter) : line_of(joined_[static_cast<std::size_t>(y)][x]);
    }
    return line;
  }

 private:
  unsigned& joined(int x, int y) { return joined_[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)]; }

  std::vector<std::vector<unsigned>> joined_;
  std::vector<std::string> text_;
};

// Returns a line with the offsets of an axis above their positions, as far as there is room.
std::string ruler(const Axis& axis, std::size_t margin) {
  std::string line(margin, ' ');
  for (const auto& [offset, place] : axis) {
    const std::size_t at = margin + static_cast<std::size_t>(place);
    if (at > margin && line.size() + 1 > at) continue;
    line.resize(at, ' ');
    line += std::to_string(offset);
  }
  return line;
}

}  // namespace

std::optional<std::vector<std::string>> draw_boxes(const Extents& size, const std::vector<LabelledBox>& boxes, int columns,
                                                   int rows) {
  if (size.size() < 1 || size.size() > 2 || boxes.empty() || std::count(size.begin(), size.end(), 0) > 0) return std::nullopt;
  const bool is_bar = size.size() == 1;
  std::size_t label_width = 1;
  for (const auto& one : boxes) label_width = std::max(label_width, one.label.size());
  const std::size_t margin = is_bar ? 0 : std::to_string(size[0]).size() + 1;
  const int width = columns - static_cast<int>(margin) - static_cast<int>(std::to_string(size[size.size() - 1]).size());
  const auto across = lay_out(size[size.size() - 1], boxes, size.size() - 1, width - 1, static_cast<int>(label_width) + 1);
  if (!across) return std::nullopt;
  Axis down{{0, 0}, {1, 2}};
  if (!is_bar) {
    // At most to scale, as characters are about twice as high as wide, but with room for each box.
    const double square = static_cast<double>(width) / 2 * static_cast<double>(size[0]) / static_cast<double>(size[1]);
    const auto least = lay_out(size[0], boxes, 0, rows, 2);
    if (!least) return std::nullopt;
    const int needed = 2 * static_cast<int>(least->size() - 1);
    down = *lay_out(size[0], boxes, 0, std::clamp(static_cast<int>(std::lround(square)), needed, std::max(needed, rows)), 2);
  }

  Canvas canvas(width, down.rbegin()->second + 1);
  for (const auto& [box, label] : boxes) {
    if (box.empty()) continue;
    const std::size_t dim = size.size() - 1;
    const int left = across->at(box.offsets[dim]), right = across->at(box.offsets[dim] + box.sizes[dim]);
    const int top = is_bar ? 0 : down.at(box.offsets[0]), bottom = is_bar ? 2 : down.at(box.offsets[0] + box.sizes[0]);
    canvas.rectangle(left, top, right, bottom);
    canvas.write((left + right + 1 - static_cast<int>(label.size())) / 2, (top + bottom) / 2, label);
  }
  std::map<int, std::int64_t> offsets;
  for (const auto& [offset, place] : down) offsets[place] = offset;
  std::vector<std::string> lines{ruler(*across, margin)};
  for (int y = 0; y <= down.rbegin()->second; ++y) {
    const auto offset = offsets.find(y);
    std::string before = is_bar || offset == offsets.end() ? "" : std::to_string(offset->second);
    before.insert(0, margin > before.size() ? margin - before.size() - 1 : 0, ' ');
    before.resize(margin, ' ');
    lines.push_back(before + canvas.line(y));
  }
  return lines;
}

}  // namespace cairn::tools
