// Names the values in a checkpoint that belong to one rank each (see `per_rank`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

// Returns the last key of the path to the value of rank `rank`. PyTorch loads the values of all
// ranks as a dict with these keys.
inline std::string rank_key(int rank) { return "rank_" + std::to_string(rank); }
inline std::string rank_name(const std::string& fqn, int rank) { return fqn + '.' + rank_key(rank); }
// Returns the arguments of a name that `rank_name` made, or nothing for any other name.
inline std::optional<std::pair<std::string, std::int64_t>> split_rank_name(const std::string& name) {
  constexpr std::string_view kMark = ".rank_";
  constexpr std::size_t kDigitsMax = 18;  // more than any rank has
  const std::size_t mark = name.rfind(kMark);
  if (mark == std::string::npos) return std::nullopt;
  const std::string digits = name.substr(mark + kMark.size());
  if (digits.empty() || digits.size() > kDigitsMax || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::make_pair(name.substr(0, mark), std::stoll(digits));
}

}  // namespace cairn
