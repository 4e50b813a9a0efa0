// What somebody who mistyped a key may have meant. Internal; pure.
#pragma once

#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>

namespace cairn {

// The stored names, and what lies above them ("model" of "model.weight"), that are closest to `name`: the fewest letters to insert,
// delete or exchange, the closest first, at most `count`. Of very large checkpoints and very long names only a part is looked at.
std::vector<std::string> closest_names(const std::string& name, const Metadata& metadata, std::size_t count = 5);
// "the closest are "a", "b"", or that there are none: for error texts.
std::string closest_names_text(const std::string& name, const Metadata& metadata);

}  // namespace cairn
