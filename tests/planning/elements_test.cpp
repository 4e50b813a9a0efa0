// The numbers in elements, and conversions between types of floating point.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <cairn/tests/support/plain.hpp>

#include <cairn/planning/elements.hpp>

using namespace cairn;

namespace {

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  return Bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

double number(const Bytes& bytes, DType dtype) { return std::get<FloatElement<double>>(element_at(bytes.data(), dtype)).value; }

unsigned converted(double value, DType to) {
  const Bytes bytes = convert_elements(bytes_of<double>({value}), DType::kFloat64, to);
  unsigned bits = 0;
  std::memcpy(&bits, bytes.data(), bytes.size());
  return bits;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("elements of short types are converted with rounding to the nearest, to even in the middle") {
  struct Case {
    DType dtype;
    double value;
    unsigned bits;
  };
  const Case cases[] = {
      {DType::kFloat16, 1, 0x3c00},         {DType::kFloat16, -2.5, 0xc100},        {DType::kFloat16, 65504, 0x7bff},
      {DType::kFloat16, 65519, 0x7bff},     {DType::kFloat16, 65520, 0x7c00},  // half-way to the next power of two
      {DType::kFloat16, 2049, 0x6800},                                         // between 2048 and 2050
      {DType::kFloat16, 2051, 0x6802},      {DType::kFloat16, 0x1p-24, 0x0001},     {DType::kFloat16, 0x1p-25, 0x0000},
      {DType::kFloat16, 0x1.8p-25, 0x0001}, {DType::kFloat16, 0x1.ffcp-15, 0x0400},  // rounds up to the smallest normal number
      {DType::kFloat16, -0.0, 0x8000},      {DType::kFloat16, -kInfinity, 0xfc00},  {DType::kFloat16, kNan, 0x7e00},
      {DType::kBFloat16, 3.140625, 0x4049}, {DType::kBFloat16, 257, 0x4380},  // between 256 and 258
      {DType::kBFloat16, 259, 0x4382},      {DType::kBFloat16, 3.4e38, 0x7f80},     {DType::kBFloat16, kNan, 0x7fc0},
      {DType::kFloat8E4M3Fn, 448, 0x7e},    {DType::kFloat8E4M3Fn, 464, 0x7e},      {DType::kFloat8E4M3Fn, 465, 0x7f},
      {DType::kFloat8E4M3Fn, 0x1p-9, 0x01}, {DType::kFloat8E4M3Fn, -1, 0xb8},       {DType::kFloat8E5M2, 57344, 0x7b},
      {DType::kFloat8E5M2, 61440, 0x7c},    {DType::kFloat8E5M2, 1.125, 0x3c},      {DType::kFloat8E4M3FnUz, 240, 0x7f},
      {DType::kFloat8E4M3FnUz, -0.0, 0x00}, {DType::kFloat8E4M3FnUz, 1000, 0x80},   {DType::kFloat8E5M2FnUz, 57344, 0x7f},
      {DType::kFloat8E5M2FnUz, -1, 0xc0},
  };
  for (const Case& one : cases) {
    CAPTURE(to_string(one.dtype));
    CAPTURE(one.value);
    CHECK(converted(one.value, one.dtype) == one.bits);
  }
}

TEST_CASE("every short number survives the way to float32 and back") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3Fn, DType::kFloat8E5M2, DType::kFloat8E4M3FnUz,
                            DType::kFloat8E5M2FnUz}) {
    const std::size_t width = element_size(dtype);
    for (unsigned bits = 0; bits < 1u << (8 * width); ++bits) {
      const Bytes stored(reinterpret_cast<const char*>(&bits), width);
      const double value = number(stored, dtype);
      const Bytes wide = convert_elements(stored, dtype, DType::kFloat32);
      CHECK_FALSE((std::isnan(value) ? !std::isnan(number(wide, DType::kFloat32)) : number(wide, DType::kFloat32) != value));
      if (!std::isnan(value)) CHECK_FALSE(convert_elements(wide, DType::kFloat32, dtype) != stored);
    }
  }
  CHECK(number(Bytes(1, '\0'), DType::kFloat8E8M0Fnu) == 0x1p-127);
  CHECK(std::isnan(number("\xff", DType::kFloat8E8M0Fnu)));
  CHECK(number("\x7f", DType::kFloat8E8M0Fnu) == 1);
}

TEST_CASE("differences of elements are counted, with NaN equal to NaN") {
  ElementDifference found;
  const Bytes a = bytes_of<float>({1, 2, NAN, 4, NAN}), b = bytes_of<float>({1, 2.5, NAN, 7, 0});
  compare_elements(a, DType::kFloat32, b, DType::kFloat32, 0.5, found);
  CHECK(found.elements == 5);
  CHECK(found.different == 2);  // 0.5 is within the tolerance
  CHECK(found.one_nan == 1);
  CHECK(found.max == 3);
  CHECK(found.sum == 3.5);
  CHECK(found.first == 3);

  // 64-bit integers that one double cannot tell apart.
  ElementDifference whole;
  compare_elements(bytes_of<std::uint64_t>({~std::uint64_t{0}}), DType::kUInt64, bytes_of<std::uint64_t>({~std::uint64_t{1}}),
                   DType::kUInt64, 0, whole);
  CHECK(whole.different == 1);
  CHECK(whole.max == 1);
  ElementDifference equal;
  compare_elements(bytes_of<std::int8_t>({-3}), DType::kInt8, bytes_of<double>({-3}), DType::kFloat64, 0, equal);
  CHECK(equal.different == 0);
}
