#include <cairn/planning/elements.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// How a type packs a number: a sign, an exponent, a mantissa. Numbers with the lowest exponent are
// subnormal.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  unsigned largest;  // the bits of the largest finite number
  unsigned beyond;   // of larger ones, without a sign: infinity, or NaN
  unsigned nan;
  bool has_negative_zero;

  unsigned sign() const { return 1u << (exponent_bits + mantissa_bits); }
};

// IEEE 754's half precision, and the first 16 bits of single precision.
constexpr FloatFormat kFloat16Format{5, 10, 15, 0x7bff, 0x7c00, 0x7e00, true};
constexpr FloatFormat kBFloat16Format{8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, true};
// The formats of one byte of the Open Compute Project. "Fn": finite, without infinity.
// "Uz": with one zero, whose negative is NaN.
constexpr FloatFormat kE4M3FnFormat{4, 3, 7, 0x7e, 0x7f, 0x7f, true};
constexpr FloatFormat kE5M2Format{5, 2, 15, 0x7b, 0x7c, 0x7f, true};
constexpr FloatFormat kE4M3FnUzFormat{4, 3, 8, 0x7f, 0x80, 0x80, false};
constexpr FloatFormat kE5M2FnUzFormat{5, 2, 16, 0x7f, 0x80, 0x80, false};
constexpr FloatFormat kE2M1Format{2, 1, 1, 0x7, 0x7, 0x7, true};

// Returns how a type packs a number, or the parts of a complex one; null for float32, float64 and
// types that are not packed like this.
const FloatFormat* format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kComplex32:
      return &kFloat16Format;
    case DType::kBFloat16:
      return &kBFloat16Format;
    case DType::kFloat8E4M3Fn:
      return &kE4M3FnFormat;
    case DType::kFloat8E5M2:
      return &kE5M2Format;
    case DType::kFloat8E4M3FnUz:
      return &kE4M3FnUzFormat;
    case DType::kFloat8E5M2FnUz:
      return &kE5M2FnUzFormat;
    default:
      return nullptr;
  }
}

template <class Value>
Value value_at(const char* bytes) {
  Value value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Returns the number that `bits` stand for. Each is exact as a double.
double decode(unsigned bits, const FloatFormat& format) {
  const unsigned magnitude = bits & (format.sign() - 1);
  const bool is_negative = (bits & format.sign()) != 0;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (!format.has_negative_zero && bits == format.nan) return kNan;
  double value = std::numeric_limits<double>::infinity();
  if (magnitude > format.largest) {
    const bool is_nan = magnitude != format.beyond || format.beyond == format.nan;
    if (is_nan && format.sign() <= 0x80) return kNan;  // as LibTorch shows those of a byte, without a sign
    if (is_nan) value = kNan;
  } else {
    const unsigned mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
    const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
    value = std::ldexp(static_cast<double>(exponent == 0 ? mantissa : mantissa | 1u << format.mantissa_bits),
                       std::max(exponent, 1) - format.bias - format.mantissa_bits);
  }
  return is_negative ? -value : value;
}

// Returns the bits of the nearest number, of which the last bit is 0 if two are as near.
unsigned encode(float value, const FloatFormat& format) {
  const unsigned sign = std::signbit(value) ? format.sign() : 0;
  if (std::isnan(value)) return format.has_negative_zero ? sign | format.nan : format.nan;
  const double magnitude = std::fabs(static_cast<double>(value));
  unsigned bits = format.beyond;
  if (std::isfinite(magnitude)) {
    const int exponent = magnitude == 0 ? 1 - format.bias : std::max(std::ilogb(magnitude), 1 - format.bias);
    // The number in units of its last place. The leading bit of a normal number counts into the
    // exponent, and so does a number that was rounded up to the next power of two.
    const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
    const double whole = std::ldexp(static_cast<double>(exponent + format.bias - 1), format.mantissa_bits) + units;
    if (whole <= format.largest) bits = static_cast<unsigned>(whole);
  }
  if (format.has_negative_zero) return sign | bits;
  return bits == format.beyond || bits == 0 ? bits : sign | bits;
}

// Returns a real number, or the real part of a complex one.
double real_at(const char* bytes, DType dtype) {
  const FloatFormat* const format = format_of(dtype);
  if (format != nullptr)
    return decode(format->sign() > 0x80 ? value_at<std::uint16_t>(bytes) : value_at<std::uint8_t>(bytes), *format);
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      return value_at<double>(bytes);
    case DType::kFloat32:
    case DType::kComplex64:
      return static_cast<double>(value_at<float>(bytes));
    default: {  // float8_e8m0fnu: an exponent only
      const auto bits = value_at<std::uint8_t>(bytes);
      return bits == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, static_cast<int>(bits) - 127);
    }
  }
}

// A number as a sum of two, because a 64-bit integer does not fit into one double. For all types,
// the difference of two close numbers is exact, and a difference is 0 only if the numbers are
// equal.
struct SplitNumber {
  std::complex<double> coarse;
  double fine = 0;  // has the sign of `coarse`, if neither is 0
  bool is_whole = true;

  bool is_nan() const { return std::isnan(coarse.real()) || std::isnan(coarse.imag()); }
};

// Both parts of a 64-bit integer are whole numbers below 2^53 times a power of two.
SplitNumber split_number(const Element& element) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 32;
  return std::visit(
      [](const auto& value) -> SplitNumber {
        if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>) {
          const auto high = value / static_cast<std::decay_t<decltype(value)>>(kHalf);
          const auto low = value - high * static_cast<std::decay_t<decltype(value)>>(kHalf);
          return {static_cast<double>(high) * static_cast<double>(kHalf), static_cast<double>(low)};
        } else {
          return {value.value, 0, false};
        }
      },
      element);
}

}  // namespace

// Integers keep their sign and 64 bits. All others are exact as one or two doubles.
Element element_at(const char* bytes, DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return std::int64_t{value_at<std::uint8_t>(bytes) != 0};
    case DType::kInt8:
      return std::int64_t{value_at<std::int8_t>(bytes)};
    case DType::kUInt8:
      return std::int64_t{value_at<std::uint8_t>(bytes)};
    case DType::kInt16:
      return std::int64_t{value_at<std::int16_t>(bytes)};
    case DType::kUInt16:
      return std::int64_t{value_at<std::uint16_t>(bytes)};
    case DType::kInt32:
      return std::int64_t{value_at<std::int32_t>(bytes)};
    case DType::kUInt32:
      return std::int64_t{value_at<std::uint32_t>(bytes)};
    case DType::kInt64:
      return value_at<std::int64_t>(bytes);
    case DType::kUInt64:
      return value_at<std::uint64_t>(bytes);
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
      return FloatElement<std::complex<double>>{{real_at(bytes, dtype), real_at(bytes + element_size(dtype) / 2, dtype)},
                                                dtype != DType::kComplex128};
    case DType::kFloat4E2M1FnX2: {
      const auto pair = value_at<std::uint8_t>(bytes);
      return FloatElement<std::complex<double>>{{decode(pair & 0xf, kE2M1Format), decode(pair >> 4, kE2M1Format)}, true};
    }
    case DType::kUnknown:
      throw InternalError("an element of an unknown type");
    default:
      return FloatElement<double>{real_at(bytes, dtype), dtype != DType::kFloat64};
  }
}

bool is_floating(DType dtype) noexcept { return is_cast_target(dtype) || dtype == DType::kFloat8E8M0Fnu; }

bool is_complex(DType dtype) noexcept {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

bool is_cast_target(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || (format_of(dtype) != nullptr && dtype != DType::kComplex32);
}

Bytes convert_elements(ByteSpan elements, DType from, DType to) {
  const std::size_t width = element_size(from), new_width = element_size(to);
  const std::size_t count = elements.size() / width;
  const FloatFormat* const format = format_of(to);
  Bytes converted(count * new_width, '\0');
  // Every type but float64 is within float32, so the first rounding changes float64 alone. LibTorch
  // converts float64 to the short types in these two steps, too.
  for (std::size_t i = 0; i < count; ++i) {
    const double value = real_at(elements.data() + i * width, from);
    char* const place = converted.data() + i * new_width;
    if (to == DType::kFloat64) {
      std::memcpy(place, &value, sizeof value);
      continue;
    }
    const auto rounded = static_cast<float>(value);
    const std::uint32_t bits = format == nullptr ? value_at<std::uint32_t>(reinterpret_cast<const char*>(&rounded))
                                                 : static_cast<std::uint32_t>(encode(rounded, *format));
    std::memcpy(place, &bits, new_width);  // little-endian
  }
  return converted;
}

void compare_elements(ByteSpan a, DType dtype_a, ByteSpan b, DType dtype_b, double tolerance, ElementDifference& found) {
  constexpr std::size_t kBlock = 4096;  // elements; most blocks are equal byte by byte
  const std::size_t width_a = element_size(dtype_a), width_b = element_size(dtype_b);
  const std::size_t count = a.size() / width_a;
  const std::int64_t before = found.elements;
  found.elements += static_cast<std::int64_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kBlock == 0 && dtype_a == dtype_b) {
      const std::size_t rest = std::min(kBlock, count - i);
      if (std::memcmp(a.data() + i * width_a, b.data() + i * width_b, rest * width_a) == 0) {
        i += rest - 1;
        continue;
      }
    }
    // Exact, whatever the two types are: a checkpoint may have changed from one to the other.
    const SplitNumber first = split_number(element_at(a.data() + i * width_a, dtype_a));
    const SplitNumber second = split_number(element_at(b.data() + i * width_b, dtype_b));
    const bool nan_first = first.is_nan(), nan_second = second.is_nan();
    if (nan_first && nan_second) continue;
    const std::complex<double> difference = first.coarse - second.coarse + (first.fine - second.fine);
    // Floating-point numbers directly: `coarse` holds all of each, and the difference of equal
    // infinities is NaN.
    const bool differs = first.is_whole || second.is_whole ? difference != 0.0 : first.coarse != second.coarse;
    if (!differs) continue;
    const double distance = difference.imag() == 0 ? std::fabs(difference.real()) : std::abs(difference);
    if (nan_first != nan_second) {
      ++found.one_nan;
    } else {
      found.max = std::max(found.max, distance);
      found.sum += distance;
    }
    if (tolerance > 0 && distance <= tolerance) continue;
    if (found.different++ == 0 && found.first < 0) found.first = before + static_cast<std::int64_t>(i);
  }
}

}  // namespace cairn
