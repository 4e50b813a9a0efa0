// Formats saved values and tensor elements, for people and programs.
#pragma once

#include <cstdint>
#include <string>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cairn/planning/box.hpp>
#include <cairn/state/state_dict.hpp>

namespace cairn::tools {

// Returns the value as Python would write it: `[0.1, 'a', None]`. Shows tensors by shape and bytes
// by length. Cuts off after `length_max` bytes, with "…".
std::string value_text(const Value& value, std::size_t length_max = 4000);
// Returns the kind of a value: "a tuple of 2", "an int".
std::string value_kind(const Value& value);

// Returns one element, by its index in row-major order, as the shortest text that reads back as the
// same number of the tensor's dtype. `tensor`: dense, in memory.
std::string element_text(const torch::Tensor& tensor, std::int64_t index);
// Returns the same element as JSON: NaN and infinities as strings, complex numbers as pairs.
nlohmann::ordered_json element_json(const torch::Tensor& tensor, std::int64_t index);

}  // namespace cairn::tools
