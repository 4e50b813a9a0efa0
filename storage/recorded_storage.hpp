// Turns the write results of all ranks into the commit record's file list and the location of each
// chunk and bytes object.
//
// Tensor offsets are not sent: the coordinator remembers the layout of each rank's plan. For each
// file, a rank reports the length, the checksum, and the lengths of the bytes objects and
// compressed tensors in it.
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

// The part of one rank's plan that the coordinator keeps.
struct PlannedFiles {
  struct Item {
    NameId name = 0;
    bool is_bytes = false;
    Box chunk;
  };
  std::vector<std::string> names;  // by NameId
  std::vector<Item> items;         // in the order of the plan
  std::vector<FileLayout> files;
};

// Extracts from `plan` the names and items that `add_planned` needs. `files` are the plan's
// layouts.
PlannedFiles keep_plan(const SavePlan& plan, std::vector<FileLayout> files);

// Fills in `files` and all storage locations of `metadata`. Not thread-safe. `metadata` is borrowed
// and must not be changed by others until `finish` returns.
class StorageRecorder {
 public:
  // `of_tensors` and `of_bytes` are the transforms to record for each tensor and each bytes object.
  explicit StorageRecorder(Metadata& metadata, std::vector<std::string> of_tensors = {}, std::vector<std::string> of_bytes = {});

  // Records the files of `rank`, with locations from the coordinator's copy of the plan. Throws
  // kMismatch if the results do not fit the plan or the metadata. `names` are the names that the
  // planned files must have.
  void add_planned(int rank, const PlannedFiles& planned, const WriteResults& results, const std::vector<std::string>& names);
  // Ends the recording. Throws kMismatch, listing the names, if no rank wrote some item.
  void finish();

 private:
  struct Entry {
    Metadata::Entry* metadata = nullptr;
    std::vector<std::uint32_t> order;  // chunk indices sorted by box; built when first needed
    std::vector<bool> recorded;        // by chunk index
  };

  std::uint32_t add_file(const FileResult& file);
  Entry& find(int rank, const std::string& fqn, bool is_bytes);
  void record_tensor(int rank, const std::string& fqn, const Box& chunk, const StorageInfo& info);
  void record_bytes(int rank, const std::string& fqn, const StorageInfo& info);
  void sort_chunks(Entry& entry);

  Metadata& metadata_;
  const std::vector<std::string> of_tensors_;
  const std::vector<std::string> of_bytes_;
  std::vector<Entry> entries_;  // in the order of the metadata
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace cairn
