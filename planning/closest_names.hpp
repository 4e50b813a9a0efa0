// Suggests names for a mistyped key. The functions have no side effects. Internal.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Selects whether prefixes ("model" of "model.weight") are suggested in addition to stored names.
enum class SuggestPrefixes { kYes, kNo };

// Returns the names closest to `name` by edit distance, at most `count`, closest first. Compares
// only the first names of a very large checkpoint, and only the beginning of a very long name.
std::vector<std::string> closest_names(const std::string& name, const Metadata& metadata, SuggestPrefixes prefixes,
                                       std::size_t count = 5);
// Returns part of an error text: `the closest are "a", "b"`, or says that the checkpoint is empty.
std::string closest_names_text(const std::string& name, const Metadata& metadata,
                               SuggestPrefixes prefixes = SuggestPrefixes::kYes);

}  // namespace cairn
