// From what the ranks wrote to what the commit record says of it: each file once, and for each chunk and bytes object where it is.
//
// Offsets of tensors do not travel: the coordinator keeps how it laid out each rank's plan, and the ranks report, per file, its
// length, its checksum and the lengths of the bytes objects in it. Only a rank whose planner changed the plan at the last moment
// reports every item.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>
#include <cairn/storage/format/file_layout.hpp>

namespace cairn {

// What the coordinator keeps of one rank's plan.
struct PlannedFiles {
  struct Item {
    NameId name = 0;
    bool is_bytes = false;
    Box chunk;
  };
  std::vector<std::string> names;  // by NameId
  std::vector<Item> items;         // as in the plan
  std::vector<FileLayout> files;
};

PlannedFiles keep_plan(const SavePlan& plan, bool single_file_per_rank);

// What a rank reports of each item it wrote, for plans that the coordinator does not know. `results`: one per layout.
std::vector<WriteResult> describe_items(const SavePlan& plan, const std::vector<FileLayout>& layouts,
                                        const std::vector<FileResult>& results);

// Fills `files` and all storage of a metadata. Not thread-safe; the metadata must not change in between.
class StorageRecorder {
 public:
  explicit StorageRecorder(Metadata& metadata);

  // What rank `rank` wrote. Throws kMismatch if it is not what was planned.
  void add_planned(int rank, const PlannedFiles& planned, const WriteResults& results, const std::string& save_id);
  void add_reported(int rank, const WriteResults& results);
  // Throws kMismatch, listing them, if chunks or bytes objects were written by nobody.
  void finish();

 private:
  struct Entry {
    Metadata::Entry* metadata = nullptr;
    std::vector<std::uint32_t> order;  // of the chunks, by box; made when first needed
    std::vector<bool> recorded;        // by chunk
  };

  std::uint32_t add_file(const FileResult& file);
  Entry& find(int rank, const std::string& fqn, bool is_bytes);
  void record_tensor(int rank, const std::string& fqn, const Box& chunk, const StorageInfo& info);
  void record_bytes(int rank, const std::string& fqn, const StorageInfo& info);
  void sort_chunks(Entry& entry);

  Metadata& metadata_;
  std::vector<Entry> entries_;  // as in the metadata
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace cairn
