// The text of a value in a pickle. Does not include LibTorch.
#include <algorithm>
#include <string>
#include <string_view>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/tools/python_text.hpp>

namespace cairn::tools {
namespace {

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

}  // namespace cairn::tools
