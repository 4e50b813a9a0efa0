// The numbers in elements of tensors, for tools. Bytes are little-endian, as in files.
#pragma once

#include <complex>
#include <cstdint>
#include <variant>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/dtype.hpp>

namespace cairn {

// A real or complex number, which is exact.
template <class Value>
struct FloatElement {
  Value value;
  bool is_short;  // its type has less than double precision
};
// The two numbers of a float4 element are a complex number.
using Element = std::variant<std::int64_t, std::uint64_t, FloatElement<double>, FloatElement<std::complex<double>>>;

// Returns an element of `dtype`, which begins at `bytes`. A bool is 0 or 1.
Element element_at(const char* bytes, DType dtype);

// Returns whether `dtype` is one of real floating-point numbers.
bool is_floating(DType dtype) noexcept;
bool is_complex(DType dtype) noexcept;
// Returns whether `convert_elements` can convert to a type: floating-point types, but for
// float8_e8m0fnu.
bool is_cast_target(DType dtype) noexcept;
// Converts elements of a floating-point type, through float32 unless both have 64 bits. Rounds to
// the nearest number, to even if two are as near. Numbers beyond the largest become infinity, or
// NaN in types without infinity.
Bytes convert_elements(ByteSpan elements, DType from, DType to);

// Compares two runs of as many elements. NaN equals NaN.
struct ElementDifference {
  std::int64_t elements = 0;
  std::int64_t different = 0;  // beyond the tolerance
  std::int64_t one_nan = 0;    // of these: NaN on one side only
  double max = 0;              // the largest absolute difference, without NaN
  double sum = 0;
  std::int64_t first = -1;  // position of the first element that differs beyond the tolerance
};
// Adds the differences between elements of `a` and of `b`. Does not change `first` unless it is
// negative.
void compare_elements(ByteSpan a, DType dtype_a, ByteSpan b, DType dtype_b, double tolerance, ElementDifference& found);

}  // namespace cairn
