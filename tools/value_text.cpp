#include <cairn/tools/value_text.hpp>

#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <cairn/base/error.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/python_text.hpp>

namespace cairn::tools {
namespace {

// Returns the shortest text that reads back as the same number of its type.
std::string digits_of(double value, bool is_short) {
  return is_short ? fmt::format("{}", static_cast<float>(value)) : fmt::format("{}", value);
}

struct ToText {
  DType dtype;
  std::string operator()(std::int64_t value) const {
    return dtype == DType::kBool ? (value != 0 ? "True" : "False") : std::to_string(value);
  }
  std::string operator()(std::uint64_t value) const { return std::to_string(value); }
  std::string operator()(FloatElement<double> element) const { return real_text(digits_of(element.value, element.is_short)); }
  std::string operator()(const FloatElement<std::complex<double>>& element) const {
    const auto& [value, is_short] = element;
    if (dtype == DType::kFloat4E2M1FnX2)
      return fmt::format("({}, {})", (*this)(FloatElement<double>{value.real(), is_short}),
                         (*this)(FloatElement<double>{value.imag(), is_short}));
    const std::string imaginary = digits_of(value.imag(), is_short);
    return digits_of(value.real(), is_short) + (imaginary.front() == '-' ? "" : "+") + imaginary + "j";
  }
};

struct ToJson {
  DType dtype;
  Json operator()(std::int64_t value) const { return dtype == DType::kBool ? Json(value != 0) : Json(value); }
  Json operator()(std::uint64_t value) const { return value; }
  Json operator()(FloatElement<double> element) const {
    const auto [value, is_short] = element;
    if (!std::isfinite(value)) return fmt::format("{}", value);
    return is_short ? std::strtod(digits_of(value, is_short).c_str(), nullptr) : value;
  }
  Json operator()(const FloatElement<std::complex<double>>& element) const {
    const auto& [value, is_short] = element;
    return Json::array(
        {(*this)(FloatElement<double>{value.real(), is_short}), (*this)(FloatElement<double>{value.imag(), is_short})});
  }
};

}  // namespace

std::string value_text(const SavedValue& value, std::size_t length_max) {
  PythonText out(length_max);
  if (value.is_opaque()) {
    put_pickle(out, value.value);
  } else {
    const Bytes pickle = pickle_leaf(value, BlobsAs::kBytes).pickle;
    put_pickle(out, unpickle(pickle, "a value", tensor_globals(), {}, OpaqueValues::kKept).root());
  }
  return out.take();
}

std::string value_kind(const SavedValue& value) {
  const auto counted = [](const char* kind, std::size_t count) { return fmt::format("{} of {}", kind, count); };
  if (value.is_opaque()) return "an opaque value, of " + printable(value.opaque);
  if (value.tensor) return "tensor";
  const PickleValue& plain = value.value;
  if (blob_of(plain)) return "bytes";
  if (const auto pairs = pairs_of(plain)) return counted("a dict", pairs->size());
  if (plain.is(PickleKind::kTuple) || plain.is(PickleKind::kList)) return counted(to_string(plain.kind()), plain.size());
  if (plain.is(PickleKind::kGlobal)) return "a torch.dtype";
  if (plain.is_object_of("torch", "Size")) return counted("a tuple", extents_of(plain).size());
  if (plain.is(PickleKind::kObject)) return plain.is_object_of("builtins", "complex") ? "ComplexDouble" : "Device";
  return to_string(plain.kind());
}

std::string element_text(const char* bytes, DType dtype) { return std::visit(ToText{dtype}, element_at(bytes, dtype)); }

Json element_json(const char* bytes, DType dtype) { return std::visit(ToJson{dtype}, element_at(bytes, dtype)); }

}  // namespace cairn::tools
