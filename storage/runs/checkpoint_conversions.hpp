// Converts the description of a checkpoint between three forms: the manager's API, commit records,
// and texts that ranks exchange. Internal.
#pragma once

#include <map>
#include <string>

#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/runs/run_directory.hpp>

namespace cairn {

// Returns the user metadata for the commit record: `common` overridden by the annotations' entries,
// and each metric as "metric.<name>". Throws kInvalidArgument for other keys with the prefix
// "metric.".
std::map<std::string, std::string> user_metadata_of(const std::map<std::string, std::string>& common,
                                                    const Annotations& annotations);

CheckpointInfo info_of(const RunDirectory& run, const RunCheckpoint& checkpoint);

// Returns a text for another rank, and the checkpoint in it. Throws kCorrupt for another text.
std::string checkpoint_text(const RunCheckpoint& checkpoint);
RunCheckpoint checkpoint_in(const std::string& text);

}  // namespace cairn
