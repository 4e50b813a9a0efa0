// Suggests names for a mistyped key. Internal; pure functions.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Selects whether prefixes ("model" of "model.weight") are suggested besides stored names.
enum class SuggestPrefixes { kYes, kNo };

// Returns at most `count` names that are closest to `name` by edit distance, closest first. For
// very large checkpoints and very long names only a part is compared.
std::vector<std::string> closest_names(const std::string& name, const Metadata& metadata, SuggestPrefixes prefixes,
                                       std::size_t count = 5);
// Returns text for an error: `the closest are "a", "b"`, or that the checkpoint is empty.
std::string closest_names_text(const std::string& name, const Metadata& metadata,
                               SuggestPrefixes prefixes = SuggestPrefixes::kYes);

}  // namespace cairn
