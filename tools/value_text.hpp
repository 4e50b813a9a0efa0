// Formats saved values and tensor elements, for people and programs.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <cairn/formats/saved_value.hpp>
#include <cairn/planning/elements.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

// Returns the value as Python would write it: `[0.1, 'a', None]`. Shows tensors by shape and bytes
// by length. Cuts off after `length_max` bytes, with "…".
std::string value_text(const SavedValue& value, std::size_t length_max = 4000);
// Returns the kind of a value: "a tuple of 2", "an int".
std::string value_kind(const SavedValue& value);

// Returns the element of `dtype` at `bytes` as the shortest text that reads back as the same number
// of its dtype, or of float32 if float32 is wider.
std::string element_text(const char* bytes, DType dtype);
// Returns the same element as JSON: NaN and infinities as strings, complex numbers and both numbers
// of a float4 element as pairs.
Json element_json(const char* bytes, DType dtype);

}  // namespace cairn::tools
