// Saved values and elements of tensors as people and programs read them.
#pragma once

#include <cstdint>
#include <string>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cairn/planning/box.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn::tools {

// As Python would write it: `[0.1, 'a', None]`. Tensors by shape, bytes by length. Cut off with "…" after `length_max` bytes.
std::string value_text(const Value& value, std::size_t length_max = 4000);
// "a tuple of 2", "an int".
std::string value_kind(const Value& value);

// One element, by its place in row-major order: the shortest text that reads back as the same number of the tensor's type. `tensor`:
// dense, in memory.
std::string element_text(const torch::Tensor& tensor, std::int64_t index);
// The same as JSON: texts for what JSON has no numbers for (NaN, infinities), pairs for complex numbers.
nlohmann::ordered_json element_json(const torch::Tensor& tensor, std::int64_t index);

}  // namespace cairn::tools
