#include <cairn/tools/value_text.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/python_text.hpp>

namespace cairn::tools {
namespace {

class ValueText {
 public:
  explicit ValueText(std::size_t length_max) : out_(length_max) {}

  void add(const Value& value) {
    if (out_.is_full()) return;
    if (value.is_ivalue()) return add(value.ivalue());
    if (value.is_tensor()) return add(value.tensor());
    if (value.is_blob()) return add(value.blob());
    if (value.is_opaque()) return add(value.opaque());
    if (value.is_dict())
      return out_.put_each(value.dict(), "{", "}", [&](const auto& item) {
        out_.put_text(item.first);
        out_.put(": ");
        add(item.second);
      });
    if (value.is_list()) return add_elements(value.list(), "[", "]");
    out_.put(value.type_name());
  }

  std::string take() { return out_.take(); }

 private:
  template <class Elements>
  void add_elements(const Elements& elements, const char* begin, const char* end) {
    out_.put_each(elements, begin, end, [&](const auto& element) { add(element); });
  }

  void add(const Blob& blob) { out_.put(fmt::format("<{}>", human_bytes(blob.bytes.size()))); }

  void add(const Opaque& value) {
    if (const auto* saved = dynamic_cast<const SavedOpaque*>(&value)) return put_pickle(out_, saved->pickle(), true);
    out_.put(printable(value.name()));
  }

  void add(const torch::Tensor& tensor) {
    const auto dtype = dtype_of(tensor.scalar_type());
    out_.put(fmt::format("tensor({} {})", dtype ? to_string(*dtype) : "?", to_string(extents_of(tensor.sizes()))));
  }

  void add(const c10::IValue& value) {
    if (out_.is_full()) return;
    if (value.isNone()) return out_.put_none();
    if (value.isBool()) return out_.put_bool(value.toBool());
    if (value.isInt()) return out_.put_int(value.toInt());
    if (value.isDouble()) return out_.put_real(value.toDouble());
    if (value.isString()) return out_.put_text(value.toStringRef());
    if (value.isTensor()) return add(value.toTensor());
    if (value.isDevice()) return out_.put("device('" + value.toDevice().str() + "')");
    if (const auto dtype = dtype_name_in(value)) return out_.put("torch." + *dtype);
    if (const auto blob = blob_in(value)) return add(*blob);
    if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      return out_.put(fmt::format("({}{:+}j)", number.real(), number.imag()));
    }
    if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      return add_elements(std::vector<c10::IValue>(elements.begin(), elements.end()), "(",
                          PythonText::end_of_tuple(elements.size()));
    }
    if (value.isList()) return add_elements(value.toListRef(), "[", "]");
    if (value.isGenericDict())
      return out_.put_each(value.toGenericDict(), "{", "}", [&](const auto& item) {
        add(item.key());
        out_.put(": ");
        add(item.value());
      });
    out_.put(value.tagKind());
  }

  PythonText out_;
};

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
  ValueText text(length_max);
  text.add(value);
  return text.take();
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
