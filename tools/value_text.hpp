// Formats saved values and tensor elements, for people and programs.
#pragma once

#include <cstdint>
#include <string>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <cairn/planning/dtype.hpp>
#include <cairn/state/state_dict.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {

// Returns the value as Python would write it: `[0.1, 'a', None]`. Shows tensors by shape and bytes
// by length. Cuts off after `length_max` bytes, with "…".
std::string value_text(const Value& value, std::size_t length_max = 4000);
// Returns the kind of a value: "a tuple of 2", "an int".
std::string value_kind(const Value& value);

// Converts elements of `dtype`, as TensorSource::read returns them, to a type that LibTorch can
// compute with: float8 to float32, uint16 to int32, uint32 to int64, and uint64 to the int64 with
// the same bits. The two numbers of a float4 element become one complex number.
torch::Tensor numbers_of(const torch::Tensor& elements, DType dtype);

// Returns one element, by its index in row-major order, as the shortest text that reads back as the
// same number of its dtype, or of float32 if float32 is wider. `numbers` must be the result of
// `numbers_of` for dense elements of `dtype`.
std::string element_text(const torch::Tensor& numbers, DType dtype, std::int64_t index);
// Returns the same element as JSON: NaN and infinities as strings, complex numbers and both numbers
// of a float4 element as pairs.
Json element_json(const torch::Tensor& numbers, DType dtype, std::int64_t index);

}  // namespace cairn::tools
