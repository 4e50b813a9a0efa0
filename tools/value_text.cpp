#include <cairn/tools/value_text.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/leaf_writer.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/python_text.hpp>

namespace cairn::tools {
namespace {

// Returns the number in the low bits of `bits`: a sign, an exponent, a mantissa. Numbers with the
// lowest exponent are subnormal.
float small_float_in(unsigned bits, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const auto exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa | 1u << mantissa_bits),
                                     std::max(exponent, 1) - bias - mantissa_bits);
  return bits >> (exponent_bits + mantissa_bits) ? -magnitude : magnitude;
}

float float8_in(DType dtype, unsigned bits) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const unsigned magnitude = bits & 0x7f;
  switch (dtype) {
    case DType::kFloat8E4M3Fn:
      return magnitude == 0x7f ? kNan : small_float_in(bits, 4, 3, 7);
    case DType::kFloat8E5M2:
      if (magnitude == 0x7c) return bits == magnitude ? kInfinity : -kInfinity;
      return magnitude > 0x7c ? kNan : small_float_in(bits, 5, 2, 15);
    case DType::kFloat8E4M3FnUz:
      return bits == 0x80 ? kNan : small_float_in(bits, 4, 3, 8);
    case DType::kFloat8E5M2FnUz:
      return bits == 0x80 ? kNan : small_float_in(bits, 5, 2, 16);
    default:  // float8_e8m0fnu: an exponent only
      return bits == 0xff ? kNan : std::ldexp(1.0f, static_cast<int>(bits) - 127);
  }
}

// Returns the number for each byte.
torch::Tensor table_of(DType dtype) {
  constexpr std::int64_t kBytes = 256;
  const bool is_pair = dtype == DType::kFloat4E2M1FnX2;
  torch::Tensor table = torch::empty({kBytes}, is_pair ? at::kComplexFloat : at::kFloat);
  for (unsigned bits = 0; bits < kBytes; ++bits) {
    if (is_pair)
      table.data_ptr<c10::complex<float>>()[bits] = {small_float_in(bits & 0xf, 2, 1, 1), small_float_in(bits >> 4, 2, 1, 1)};
    else
      table.data_ptr<float>()[bits] = float8_in(dtype, bits);
  }
  return table;
}

// Calls `use` with the element: an integer; or a floating-point or complex number, and whether its
// dtype has less than double precision.
template <class Use>
auto with_element(const torch::Tensor& numbers, DType dtype, std::int64_t index, Use&& use) {
  const torch::Tensor element = numbers.reshape({-1})[index];
  const at::ScalarType type = numbers.scalar_type();
  if (numbers.is_complex())
    return use(static_cast<c10::complex<double>>(element.item().toComplexDouble()), type != at::kComplexDouble);
  if (numbers.is_floating_point()) return use(element.item().toDouble(), type != at::kDouble);
  const std::int64_t bits = element.to(at::kLong).item().toLong();
  return dtype == DType::kUInt64 ? use(static_cast<std::uint64_t>(bits)) : use(bits);
}

// Returns the shortest text that reads back as the same number of the tensor's dtype.
std::string digits_of(double value, bool is_short) {
  return is_short ? fmt::format("{}", static_cast<float>(value)) : fmt::format("{}", value);
}

struct ToText {
  DType dtype;
  std::string operator()(std::int64_t value) const {
    return dtype == DType::kBool ? (value != 0 ? "True" : "False") : std::to_string(value);
  }
  std::string operator()(std::uint64_t value) const { return std::to_string(value); }
  std::string operator()(double value, bool is_short) const { return real_text(digits_of(value, is_short)); }
  std::string operator()(c10::complex<double> value, bool is_short) const {
    if (dtype == DType::kFloat4E2M1FnX2)
      return fmt::format("({}, {})", (*this)(value.real(), is_short), (*this)(value.imag(), is_short));
    const std::string imaginary = digits_of(value.imag(), is_short);
    return digits_of(value.real(), is_short) + (imaginary.front() == '-' ? "" : "+") + imaginary + "j";
  }
};

struct ToJson {
  DType dtype;
  Json operator()(std::int64_t value) const { return dtype == DType::kBool ? Json(value != 0) : Json(value); }
  Json operator()(std::uint64_t value) const { return value; }
  Json operator()(double value, bool is_short) const {
    if (!std::isfinite(value)) return fmt::format("{}", value);
    return is_short ? std::strtod(digits_of(value, is_short).c_str(), nullptr) : value;
  }
  Json operator()(c10::complex<double> value, bool is_short) const {
    return Json::array({(*this)(value.real(), is_short), (*this)(value.imag(), is_short)});
  }
};

}  // namespace

std::string value_text(const Value& value, std::size_t length_max) {
  PythonText out(length_max);
  if (value.is_opaque()) {
    put_pickle(out, dynamic_cast<const SavedOpaque&>(value.opaque()).pickle());
  } else {
    const Bytes pickle = pickle_value(value, BlobsAs::kBytes).pickle;
    put_pickle(out, unpickle(pickle, "a value", tensor_globals(), {}, OpaqueValues::kKept).root());
  }
  return out.take();
}

std::string value_kind(const Value& value) {
  const auto counted = [](const char* kind, std::size_t count) { return fmt::format("{} of {}", kind, count); };
  if (value.is_dict()) return counted("a dict", value.dict().size());
  if (value.is_list()) return counted("a list", value.list().size());
  if (value.is_blob()) return "bytes";
  if (value.is_opaque()) return "an opaque value, of " + printable(value.opaque().name());
  if (!value.is_ivalue()) return value.type_name();
  const c10::IValue& plain = value.ivalue();
  if (plain.isNone()) return "None";
  if (plain.isBool()) return "a bool";
  if (plain.isInt()) return "an int";
  if (plain.isDouble()) return "a float";
  if (plain.isString()) return "a str";
  if (dtype_name_in(plain)) return "a torch.dtype";
  if (plain.isTuple()) return counted("a tuple", plain.toTupleRef().elements().size());
  if (plain.isList()) return counted("a list", plain.toListRef().size());
  if (plain.isGenericDict()) return counted("a dict", plain.toGenericDict().size());
  return plain.tagKind();
}

torch::Tensor numbers_of(const torch::Tensor& elements, DType dtype) {
  switch (dtype) {
    case DType::kUInt16:
      return elements.view(at::kShort).to(at::kInt).bitwise_and(std::int64_t{0xffff});
    case DType::kUInt32:
      return elements.view(at::kInt).to(at::kLong).bitwise_and(std::int64_t{0xffffffff});
    case DType::kUInt64:
      return elements.view(at::kLong);
    case DType::kFloat8E4M3Fn:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FnUz:
    case DType::kFloat8E5M2FnUz:
    case DType::kFloat8E8M0Fnu:
    case DType::kFloat4E2M1FnX2:
      return table_of(dtype).index_select(0, elements.view(at::kByte).reshape({-1}).to(at::kLong)).reshape(elements.sizes());
    default:
      return elements;
  }
}

std::string element_text(const torch::Tensor& numbers, DType dtype, std::int64_t index) {
  return with_element(numbers, dtype, index, ToText{dtype});
}

Json element_json(const torch::Tensor& numbers, DType dtype, std::int64_t index) {
  return with_element(numbers, dtype, index, ToJson{dtype});
}

}  // namespace cairn::tools
