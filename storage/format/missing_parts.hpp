// The parts of a checkpoint of which each rank saves its own.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cairn/planning/stored_items.hpp>
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

// Joins records of ranks that each saved for themselves, the lowest rank first.
class JoinedRecords {
 public:
  // Adds the entries and files of the record of one rank. Leaves out an entry of another kind, size
  // or type than the one before.
  void add(Metadata record) {
    // Each record numbers its files from 0.
    const std::uint32_t files_before = file_count();
    for (auto& [fqn, entry] : record.state_dict_metadata) {
      visit_stored(entry, [&](StorageInfo& storage, TensorStorageMetadata*, const Box*) { storage.file += files_before; });
      auto* const tensor = std::get_if<TensorStorageMetadata>(&entry);
      const auto [known, is_new] = entries_.try_emplace(fqn);
      // If several ranks have saved a whole value, that of the lowest one counts.
      if (is_new) {
        known->second.index = joined_.state_dict_metadata.size();
        if (tensor) known->second.chunks.insert(tensor->chunks.begin(), tensor->chunks.end());
        joined_.state_dict_metadata.emplace_back(fqn, std::move(entry));
      } else if (auto* const to = std::get_if<TensorStorageMetadata>(&joined_.state_dict_metadata[known->second.index].second);
                 to && tensor && to->size == tensor->size && to->type_name() == tensor->type_name()) {
        for (std::size_t i = 0; i < tensor->chunks.size(); ++i) {
          if (!known->second.chunks.insert(tensor->chunks[i]).second) continue;
          to->chunks.push_back(tensor->chunks[i]);
          if (i < tensor->storage.size()) to->storage.push_back(tensor->storage[i]);
        }
      }
    }
    for (auto& [fqn, path] : record.planner_data)
      if (paths_.insert(fqn).second) joined_.planner_data.emplace_back(fqn, std::move(path));
    joined_.files.insert(joined_.files.end(), record.files.begin(), record.files.end());
    joined_.version = record.version;
  }
  // Returns the number of files so far, by which the file numbers of the next record are moved.
  std::uint32_t file_count() const { return static_cast<std::uint32_t>(joined_.files.size()); }
  Metadata take() { return std::move(joined_); }

 private:
  struct Entry {
    std::size_t index = 0;
    std::set<Box> chunks{};  // of a tensor, so far
  };
  Metadata joined_;
  std::unordered_map<std::string, Entry> entries_;
  std::set<std::string> paths_;
};

}  // namespace cairn
