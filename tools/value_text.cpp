#include <cairn/tools/value_text.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unpickler.hpp>

namespace cairn::tools {
namespace {

// Appends ".0" to whole numbers, to mark them as floats as Python does.
std::string real_text(const std::string& digits) {
  return digits.find_first_not_of("-0123456789") == std::string::npos ? digits + ".0" : digits;
}

std::string tensor_text(const PickleValue& value) {
  try {
    const auto tensor = describe_tensor(value);
    return fmt::format("tensor({} {})", tensor.dtype == DType::kUnknown ? tensor.unknown_dtype : to_string(tensor.dtype),
                       to_string(tensor.sizes));
  } catch (const Error&) {
    return "<an incomplete tensor>";
  }
}

// Appends what comes before the parts of `value`, and returns what comes after them.
const char* put_begin(PythonText& out, const PickleValue& value) {
  const auto put = [&](const std::string& begin, const char* end) {
    out.put(begin);
    return end;
  };
  switch (value.shape()) {
    case PickleKind::kList:
      return value.is(PickleKind::kOpaque) ? put(value.opaque_name() + "([", "])") : put("[", "]");
    case PickleKind::kTuple:
      return put("(", value.size() == 1 ? ",)" : ")");
    case PickleKind::kDict:
      return put("{", "}");
    case PickleKind::kObject:
      return put(printable(value.callee().opaque_name()) + "(", ")");
    case PickleKind::kGlobal:
      return put(printable(value.opaque_name()), "");
    case PickleKind::kInt:
    case PickleKind::kBytes:
      out.put_short("<" + value.opaque_name() + ">", value.opcode());
      return "";
    default:
      return put("<" + value.opaque_name() + ">", "");
  }
}

// Appends an object for which Python writes something else than a call. Returns false for others.
bool put_known(PythonText& out, const PickleValue& object) {
  const std::string name = object.callee().opaque_name();
  const PickleValue given = object.arguments();
  const auto is = [&](std::size_t index, PickleKind kind) { return index < given.size() && given[index].is(kind); };
  if (name == "_codecs.encode" && is(0, PickleKind::kText)) {
    // Each byte is a character of the text, in UTF-8.
    const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
    const std::string_view text = given[0].as_text();
    out.put_bytes(static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins)), text);
  } else if (name == "builtins.complex" && is(0, PickleKind::kFloat) && is(1, PickleKind::kFloat)) {
    out.put(fmt::format("({}{:+}j)", given[0].as_float(), given[1].as_float()));
  } else if (name == "torch.Size" && is(0, PickleKind::kTuple)) {
    put_pickle(out, given[0]);
  } else if (name == "torch.device" && is(0, PickleKind::kText)) {
    const std::string index = is(1, PickleKind::kInt) ? ":" + std::to_string(given[1].as_int()) : "";
    out.put("device('" + printable(std::string(given[0].as_text())) + index + "')");
  } else {
    return false;
  }
  return true;
}

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

void put_pickle(PythonText& out, const PickleValue& value) {
  if (out.is_full()) return;
  switch (value.kind()) {
    case PickleKind::kNone:
      return out.put("None");
    case PickleKind::kBool:
      return out.put(value.as_bool() ? "True" : "False");
    case PickleKind::kInt:
      return out.put(std::to_string(value.as_int()));
    case PickleKind::kFloat:
      return out.put(real_text(fmt::format("{}", value.as_float())));
    case PickleKind::kText:
      return out.put("'" + printable(std::string(value.as_text())) + "'");
    case PickleKind::kBytes:
      return out.put_bytes(value.as_bytes().size(), value.as_bytes());
    default:
      if (is_tensor(value)) return out.put(tensor_text(value));
      if (value.shape() == PickleKind::kObject && put_known(out, value)) return;
  }
  const char* const end = put_begin(out, value);
  std::size_t index = 0;
  for_each_part(value, [&](std::string_view name, const PickleValue& part) {
    if (out.is_full()) return;
    if (index > 0) out.put(", ");
    if (value.is(PickleKind::kDict)) put_pickle(out, value.key(index)), out.put(": ");
    if (!name.empty() && !value.is(PickleKind::kDict)) out.put(printable(std::string(name)) + "=");
    put_pickle(out, part);
    ++index;
  });
  out.put(end);
}

std::string value_text(const SavedValue& value, std::size_t length_max) {
  PythonText out{length_max};
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
