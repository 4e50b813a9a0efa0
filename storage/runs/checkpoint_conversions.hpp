// Converts the description of a checkpoint between three forms: the manager's API, commit records,
// and texts that ranks exchange. Internal.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <cairn/storage/runs/checkpoint_info.hpp>
#include <cairn/storage/runs/run_directory.hpp>

namespace cairn {

// Returns the user metadata for the commit record: `common` overridden by the annotations' entries,
// and each metric as "metric.<name>". Throws kInvalidArgument for other keys with the prefix
// "metric.".
std::map<std::string, std::string> user_metadata_of(const std::map<std::string, std::string>& common,
                                                    const Annotations& annotations);

CheckpointInfo info_of(const RunDirectory& run, const RunCheckpoint& checkpoint);

// `add_texts` appends the fields of a checkpoint to `texts`. `take_checkpoint` reads them from
// index `at` on, moves `at` behind them, and throws kCorrupt if they are malformed.
void add_texts(std::vector<std::string>& texts, const RunCheckpoint& checkpoint);
RunCheckpoint take_checkpoint(const std::vector<std::string>& texts, std::size_t& at);

}  // namespace cairn
