// Names the values in a checkpoint that belong to one rank each (see `per_rank`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cairn {

// Returns the last key of the path to the value of rank `rank`. PyTorch loads the values of all
// ranks as a dict with these keys.
inline std::string rank_key(int rank) { return "rank_" + std::to_string(rank); }
inline std::string rank_name(const std::string& fqn, int rank) { return fqn + '.' + rank_key(rank); }
// Returns the `fqn` of a name that `rank_name` made, or nothing for any other name.
inline std::optional<std::string> name_without_rank(const std::string& name) {
  static const std::string kMark = ".rank_";
  const std::size_t mark = name.rfind(kMark);
  if (mark == std::string::npos || mark + kMark.size() == name.size()) return std::nullopt;
  if (name.find_first_not_of("0123456789", mark + kMark.size()) != std::string::npos) return std::nullopt;
  return name.substr(0, mark);
}

// Returns the rank of a name that `rank_name` made, or nothing for any other name.
inline std::optional<std::int64_t> rank_in_name(const std::string& name) {
  const auto begin = name.rfind('_') + 1;
  // More digits than any rank has.
  if (!name_without_rank(name) || name.size() - begin > 18) return std::nullopt;
  return std::stoll(name.substr(begin));
}

}  // namespace cairn
