// Weights that are quantised in blocks, as in DeepSeek's models: the elements of each square block
// share one scale, by which they are multiplied.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include <cairn/planning/box.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// Returns whether `dequantize_blocks` takes weights of this type.
bool is_quantized_type(DType dtype) noexcept;

// Returns the box of the scales that cover `box` of a two-dimensional weight. There is one scale
// per block; a block has `block_size` elements in each dimension.
Box scales_of(const Box& box, std::int64_t block_size);

// Returns the elements of `box` of a weight, multiplied by their scales in float32, as type
// `target`. `weight` holds these elements in carrier_type_of(dtype); `scales` holds the scales in
// scales_of(box, block_size).
torch::Tensor dequantize_blocks(const torch::Tensor& weight, DType dtype, const torch::Tensor& scales, const Box& box,
                                std::int64_t block_size, at::ScalarType target);

}  // namespace cairn
