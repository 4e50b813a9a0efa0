#include <cairn/runtime/tools/value_text.hpp>

#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/runtime/tools/commands.hpp>
#include <cairn/state/tensor_types.hpp>

namespace cairn::tools {
namespace {

// Appends ".0" to whole numbers, to mark them as floats as Python does.
std::string real_text(std::string digits) {
  return digits.find_first_not_of("-0123456789") == std::string::npos ? digits + ".0" : digits;
}

class ValueText {
 public:
  explicit ValueText(std::size_t length_max) : length_max_(length_max) {}

  void add(const Value& value) {
    if (is_full()) return;
    if (value.is_ivalue()) return add(value.ivalue());
    if (value.is_tensor()) return add(value.tensor());
    if (value.is_blob()) return put(fmt::format("<{}>", human_bytes(value.blob().bytes.size())));
    if (value.is_dict()) {
      put("{");
      bool first = true;
      for (const auto& [key, element] : value.dict()) {
        put(std::exchange(first, false) ? "" : ", ");
        put_text(key);
        put(": ");
        add(element);
        if (is_full()) return;
      }
      return put("}");
    }
    if (value.is_list()) return add_elements(value.list(), "[", "]");
    put(value.type_name());
  }

  std::string take() {
    if (text_.size() <= length_max_) return std::move(text_);
    std::size_t end = length_max_;
    while (end > 0 && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;  // do not cut inside a character
    return text_.substr(0, end) + "…";
  }

 private:
  bool is_full() const { return text_.size() > length_max_; }
  void put(const std::string& text) { text_ += text; }
  void put_text(const std::string& text) { text_ += "'" + printable(text) + "'"; }

  template <class Elements>
  void add_elements(const Elements& elements, const char* begin, const char* end) {
    put(begin);
    bool first = true;
    for (const auto& element : elements) {
      put(std::exchange(first, false) ? "" : ", ");
      add(element);
      if (is_full()) return;
    }
    put(end);
  }

  void add(const torch::Tensor& tensor) {
    const auto dtype = dtype_of(tensor.scalar_type());
    put(fmt::format("tensor({} {})", dtype ? to_string(*dtype) : "?", to_string(extents_of(tensor.sizes()))));
  }

  void add(const c10::IValue& value) {
    if (is_full()) return;
    if (value.isNone()) return put("None");
    if (value.isBool()) return put(value.toBool() ? "True" : "False");
    if (value.isInt()) return put(std::to_string(value.toInt()));
    if (value.isDouble()) return put(real_text(fmt::format("{}", value.toDouble())));
    if (value.isString()) return put_text(value.toStringRef());
    if (value.isTensor()) return add(value.toTensor());
    if (value.isDevice()) return put("device('" + value.toDevice().str() + "')");
    if (const auto dtype = dtype_name_in(value)) return put("torch." + *dtype);
    if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      return put(fmt::format("({}{:+}j)", number.real(), number.imag()));
    }
    if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      return add_elements(std::vector<c10::IValue>(elements.begin(), elements.end()), "(", elements.size() == 1 ? ",)" : ")");
    }
    if (value.isList()) return add_elements(value.toListRef(), "[", "]");
    if (value.isGenericDict()) {
      put("{");
      bool first = true;
      for (const auto& item : value.toGenericDict()) {
        put(std::exchange(first, false) ? "" : ", ");
        add(item.key());
        put(": ");
        add(item.value());
        if (is_full()) return;
      }
      return put("}");
    }
    put(value.tagKind());
  }

  const std::size_t length_max_;
  std::string text_;
};

// Calls `use` with the element: an integer; or a floating-point or complex number, and whether its
// dtype has less than double precision.
template <class Use>
auto with_element(const torch::Tensor& tensor, std::int64_t index, Use&& use) {
  const torch::Tensor element = tensor.reshape({-1})[index];
  const at::ScalarType type = tensor.scalar_type();
  if (tensor.is_complex())
    return use(static_cast<c10::complex<double>>(element.item().toComplexDouble()), type != at::kComplexDouble);
  if (tensor.is_floating_point()) return use(element.item().toDouble(), type != at::kDouble);
  const std::int64_t bits = element.to(at::kLong).item().toLong();
  return dtype_of(type) == DType::kUInt64 ? use(static_cast<std::uint64_t>(bits)) : use(bits);
}

// Returns the shortest text that reads back as the same number of the tensor's dtype.
std::string digits_of(double value, bool is_short) {
  return is_short ? fmt::format("{}", static_cast<float>(value)) : fmt::format("{}", value);
}

struct ToText {
  bool is_bool;
  std::string operator()(std::int64_t value) const { return is_bool ? (value != 0 ? "True" : "False") : std::to_string(value); }
  std::string operator()(std::uint64_t value) const { return std::to_string(value); }
  std::string operator()(double value, bool is_short) const { return real_text(digits_of(value, is_short)); }
  std::string operator()(c10::complex<double> value, bool is_short) const {
    const std::string imaginary = digits_of(value.imag(), is_short);
    return digits_of(value.real(), is_short) + (imaginary.front() == '-' ? "" : "+") + imaginary + "j";
  }
};

struct ToJson {
  bool is_bool;
  nlohmann::ordered_json operator()(std::int64_t value) const {
    return is_bool ? nlohmann::ordered_json(value != 0) : nlohmann::ordered_json(value);
  }
  nlohmann::ordered_json operator()(std::uint64_t value) const { return value; }
  nlohmann::ordered_json operator()(double value, bool is_short) const {
    if (!std::isfinite(value)) return fmt::format("{}", value);
    return is_short ? std::strtod(digits_of(value, is_short).c_str(), nullptr) : value;
  }
  nlohmann::ordered_json operator()(c10::complex<double> value, bool is_short) const {
    return nlohmann::ordered_json::array({(*this)(value.real(), is_short), (*this)(value.imag(), is_short)});
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

std::string element_text(const torch::Tensor& tensor, std::int64_t index) {
  return with_element(tensor, index, ToText{tensor.scalar_type() == at::kBool});
}

nlohmann::ordered_json element_json(const torch::Tensor& tensor, std::int64_t index) {
  return with_element(tensor, index, ToJson{tensor.scalar_type() == at::kBool});
}

}  // namespace cairn::tools
