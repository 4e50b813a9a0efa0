// The names that Cairn gives to checkpoints and to their data files. FORMAT.md specifies them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

// The prefix of the names of all data files, PyTorch's among them.
inline constexpr const char* kDataFilePrefix = "__";

// Prefixes of the names of open and of fenced attempts, in stores that keep these beside the files.
inline constexpr const char* kOpenMark = ".attempt-";
inline constexpr const char* kFencedMark = ".fenced-";

inline bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// In a checkpoint that a restore has found damaged (see storage/runs/run_directory.hpp).
inline constexpr const char* kFindingName = ".damaged";

// Returns the name of file `index` of `rank`: "__<rank>_<index>_<save id>.distcp".
std::string data_file_name(int rank, int index, const std::string& save_id);
// Returns the save id in such a name, or nothing if Cairn did not make it (see is_save_id).
std::optional<std::string> save_id_of_file(const std::string& name);
// Returns the save id in such a name, and any other name as it is: one key for all files of a save.
inline std::string file_key(const std::string& name) { return save_id_of_file(name).value_or(name); }
// Returns whether Cairn gave a data file its name. `name` may begin with the place of a part.
inline bool is_cairns_file(const std::string& name) { return save_id_of_file(name.substr(name.rfind('/') + 1)).has_value(); }

// Returns the rank in the name of a record that PyTorch writes for one rank
// (use_collectives=False), "__2.metadata"; nothing for other names.
std::optional<int> rank_of_record(std::string_view name);

// Returns the `n`th name for checkpoints of a step: step_100, step_100.2, step_100.3. `step` must
// not be negative; `n` is at least 1.
std::string checkpoint_name(std::int64_t step, std::uint64_t n = 1);
// Returns the step in a name that has exactly this form, nothing for any other name.
std::optional<std::int64_t> step_of_name(const std::string& name);
inline bool is_checkpoint_name(const std::string& name) { return step_of_name(name).has_value(); }

// A part of a checkpoint, which one rank saved for itself (use_collectives off). Its place is below
// the checkpoint's and has a name such as "rank_2_of_8".
struct PartName {
  int rank = 0;
  int world_size = 0;
};
std::string part_name(int rank, int world_size);
// Returns the part to which an object or place belongs: "rank_2_of_8/.metadata", "rank_2_of_8".
// Returns nothing for other names.
std::optional<PartName> part_of_name(std::string_view name);
inline constexpr const char* kMergeAdvice = "`cairn merge` makes one checkpoint of the parts";  // for error texts
// Returns whether a URL is the place of such a part. The tensors of a part may have gaps, which the
// parts of other ranks fill.
bool is_part(const std::string& url);
// Key in the user metadata of a part. The value is the incarnation of the world that saved it.
inline constexpr const char* kPartWorldKey = "cairn.incarnation";

// The record of torch_checkpointing (Meta).
inline constexpr const char* kItemsRecordName = "metadata.pkl";
// Returns the item and the rank in the name that torch_checkpointing gives to a file: "model_3.pt".
// Returns nothing for other names, and for names of objects in a directory.
std::optional<std::pair<std::string, int>> item_of_file(const std::string& name);

}  // namespace cairn
