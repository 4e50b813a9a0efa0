#include <cairn/tools/slice.hpp>

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(at, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  for (std::string& part : parts) {
    part.erase(0, std::min(part.find_first_not_of(' '), part.size()));
    part.erase(part.find_last_not_of(' ') + 1);
  }
  return parts;
}

class SliceReader {
 public:
  SliceReader(const std::string& text, const Extents& size) : text_(text), size_(size) {}

  Slice read() const {
    Slice slice{Box::whole(size_), std::vector<bool>(size_.size(), false)};
    if (text_.empty()) return slice;
    std::vector<std::string> parts = split(text_, ',');
    const auto dots = std::find(parts.begin(), parts.end(), "...");
    if (dots != parts.end()) {
      if (std::find(dots + 1, parts.end(), "...") != parts.end()) refuse("it has \"...\" twice");
      const std::size_t given = parts.size() - 1;
      const auto at = parts.erase(dots);
      parts.insert(at, size_.size() > given ? size_.size() - given : 0, ":");
    }
    if (parts.size() > size_.size())
      refuse(fmt::format("it names {} dimensions, the tensor {} has {}", parts.size(), to_string(size_), size_.size()));
    for (std::size_t dim = 0; dim < parts.size(); ++dim) read(parts[dim], dim, slice);
    return slice;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw WrongUse(fmt::format("--slice {}: {}; write it like 0:4,: or 3,-1", printable(text_), why));
  }

  std::int64_t number(const std::string& text) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse("\"" + printable(text) + "\" is no number");
    return value;
  }

  void read(const std::string& part, std::size_t dim, Slice& slice) const {
    const std::int64_t size = size_[dim];
    const std::vector<std::string> ends = split(part, ':');
    if (ends.size() > 2) refuse("steps cannot be given");
    if (ends.size() == 1) {
      const std::int64_t given = number(part);
      const std::int64_t index = given < 0 ? given + size : given;
      if (index < 0 || index >= size) refuse(fmt::format("{} is outside dimension {}, which has {}", given, dim, size));
      slice.box.offsets[dim] = index;
      slice.box.sizes[dim] = 1;
      slice.is_index[dim] = true;
      return;
    }
    const auto place = [&](const std::string& text, std::int64_t otherwise) {
      if (text.empty()) return otherwise;
      const std::int64_t given = number(text);
      return std::clamp<std::int64_t>(given < 0 ? given + size : given, 0, size);
    };
    const std::int64_t begin = place(ends[0], 0);
    slice.box.offsets[dim] = begin;
    slice.box.sizes[dim] = std::max<std::int64_t>(0, place(ends[1], size) - begin);
  }

  const std::string& text_;
  const Extents& size_;
};

}  // namespace

Slice parse_slice(const std::string& text, const Extents& size) { return SliceReader(text, size).read(); }

}  // namespace cairn::tools
