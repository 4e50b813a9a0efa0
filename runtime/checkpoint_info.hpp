// What checkpoints of a run say of themselves, as the manager's users see it, as it stands in commit records, and as ranks tell each
// other. Internal.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <cairn/runtime/checkpoint_manager.hpp>
#include <cairn/storage/run_directory.hpp>

namespace cairn {

// What the record keeps: the two together, of equal keys the annotations', and each metric as "metric.<name>". kInvalidArgument for other
// keys that begin so.
std::map<std::string, std::string> user_metadata_of(const std::map<std::string, std::string>& common,
                                                    const Annotations& annotations);

CheckpointInfo info_of(const RunDirectory& run, const RunCheckpoint& checkpoint);

// Appends to texts to be packed; takes from `at` on, and moves it on. kCorrupt.
void add_texts(std::vector<std::string>& texts, const RunCheckpoint& checkpoint);
RunCheckpoint take_checkpoint(const std::vector<std::string>& texts, std::size_t& at);

}  // namespace cairn
