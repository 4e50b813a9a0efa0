// Turns the write results of all ranks into the commit record's file list and the location of each
// chunk and bytes object.
//
// Tensor offsets are not sent: the coordinator remembers the layout of each rank's plan. For each
// file, a rank reports the length, the checksum, and the lengths of the bytes objects and
// compressed tensors in it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
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
  NameTable names;
  std::vector<Item> items;  // in the order of the plan
  std::vector<FileLayout> files;
};

// Extracts from `plan` the names and items that `record_storage` needs. `files` are the plan's
// layouts.
PlannedFiles keep_plan(const SavePlan& plan, std::vector<FileLayout> files);

// Returns the name that a planned file of a rank must have.
using PlannedName = std::function<std::string(std::size_t rank, std::size_t file)>;

// Fills in `files` and all storage locations of `metadata`, from the plans that the coordinator
// keeps and the results of the ranks, by rank. `of_tensors` and `of_bytes` are the transforms to
// record for each tensor and each bytes object. Throws kMismatch if the results do not fit the
// plans or the metadata, or if no rank wrote some item, listing the names.
void record_storage(Metadata& metadata, const std::vector<PlannedFiles>& planned, const std::vector<WriteResults>& results,
                    const PlannedName& name_of, const std::vector<std::string>& of_tensors,
                    const std::vector<std::string>& of_bytes);

}  // namespace cairn
