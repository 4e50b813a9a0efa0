// Finds out which ranks have no part of a checkpoint of which each rank saves its own.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <cairn/storage/format/names.hpp>

namespace cairn {

// Returns the ranks of which `places` has no part, by the size of the world that saved the others;
// only worlds that lack one. Ignores worlds of more than 65,536 ranks, which a name may claim.
inline std::map<int, std::vector<int>> missing_parts(const std::vector<std::string>& places) {
  std::map<int, std::set<int>> worlds;
  for (const std::string& place : places)
    if (const auto part = part_of_name(place); part && part->world_size <= 65'536) worlds[part->world_size].insert(part->rank);
  std::map<int, std::vector<int>> missing;
  for (const auto& [size, found] : worlds)
    for (int rank = 0; rank < size; ++rank)
      if (found.count(rank) == 0) missing[size].push_back(rank);
  return missing;
}

}  // namespace cairn
