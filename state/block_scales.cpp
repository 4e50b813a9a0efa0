#include <cairn/state/block_scales.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <torch/torch.h>

namespace cairn {
namespace {

using Table = std::array<float, 256>;

// The numbers of a float type of one byte. An exponent of only ones means infinity and NaN, as in
// IEEE 754, or, without `has_infinity`, NaN if the mantissa has only ones too.
Table numbers_of(int mantissa_bits, int bias, bool has_infinity) {
  const int hidden = 1 << mantissa_bits;
  const int exponent_max = 0x7f >> mantissa_bits;
  Table numbers{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & (hidden - 1);
    float number = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                 : std::ldexp(static_cast<float>(hidden + mantissa), exponent - bias - mantissa_bits);
    if (exponent == exponent_max && (has_infinity ? mantissa != 0 : mantissa == hidden - 1))
      number = std::numeric_limits<float>::quiet_NaN();
    else if (exponent == exponent_max && has_infinity)
      number = std::numeric_limits<float>::infinity();
    numbers[static_cast<std::size_t>(bits)] = (bits & 0x80) != 0 ? -number : number;
  }
  return numbers;
}

// By a table, because the LibTorch in use may lack the type.
torch::Tensor as_float32(const torch::Tensor& weight, DType dtype) {
  if (dtype == DType::kInt8) return weight.to(torch::kFloat32);
  static const Table e4m3 = numbers_of(3, 7, false), e5m2 = numbers_of(2, 15, true);
  const Table& table = dtype == DType::kFloat8E4M3Fn ? e4m3 : e5m2;
  const torch::Tensor bytes = weight.contiguous();
  torch::Tensor numbers = torch::empty(bytes.sizes(), torch::kFloat32);
  const auto* from = static_cast<const unsigned char*>(bytes.data_ptr());
  auto* to = numbers.data_ptr<float>();
  for (std::int64_t i = 0; i < bytes.numel(); ++i) to[i] = table[from[i]];
  return numbers;
}

}  // namespace

bool is_quantized_type(DType dtype) noexcept {
  return dtype == DType::kFloat8E4M3Fn || dtype == DType::kFloat8E5M2 || dtype == DType::kInt8;
}

Box scales_of(const Box& box, std::int64_t block_size) {
  Box scales = box;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
    scales.offsets[dim] = box.offsets[dim] / block_size;
    const std::int64_t end = box.offsets[dim] + box.sizes[dim];
    scales.sizes[dim] = end / block_size + (end % block_size != 0) - scales.offsets[dim];
  }
  return scales;
}

torch::Tensor dequantize_blocks(const torch::Tensor& weight, DType dtype, const torch::Tensor& scales, const Box& box,
                                std::int64_t block_size, at::ScalarType target) {
  const Box covered = scales_of(box, block_size);
  const torch::Tensor columns = torch::arange(box.offsets[1], box.offsets[1] + box.sizes[1], torch::kInt64);
  const torch::Tensor by_column = scales.to(torch::kFloat32).index_select(1, columns.floor_divide(block_size) - covered.offsets[1]);
  // One row of blocks at a time, so that the scales are never as large as the weight.
  torch::Tensor numbers = as_float32(weight, dtype);
  for (std::int64_t row = 0; row < covered.sizes[0]; ++row) {
    const std::int64_t begin = std::max(box.offsets[0], (covered.offsets[0] + row) * block_size) - box.offsets[0];
    const std::int64_t end = std::min(box.sizes[0], (covered.offsets[0] + row + 1) * block_size - box.offsets[0]);
    numbers.narrow(0, begin, end - begin).mul_(by_column[row]);
  }
  return numbers.to(target);
}

}  // namespace cairn
