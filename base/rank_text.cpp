#include <cairn/base/rank_text.hpp>

namespace cairn {

std::string name_ranks(const std::vector<int>& ranks) {
  // Every second rank of a large world would otherwise make a line of kilobytes.
  constexpr std::size_t kRangesShownMax = 12;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t ranges = 0;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (ranges == kRangesShownMax) return text + " and " + std::to_string(ranks.size() - begin) + " more";
    if (ranges++ > 0) text += ", ";
    text += std::to_string(ranks[begin]);
    // Two adjacent ranks are listed, because "0-1" saves nothing.
    if (end - begin > 1) text += (end - begin == 2 ? ", " : "-") + std::to_string(ranks[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace cairn
