#include <cairn/planning/dtype.hpp>

#include <iterator>

namespace cairn {
namespace {

struct DTypeFacts {
  DType dtype;
  const char* name;
  std::uint8_t bytes;
};

constexpr DTypeFacts kFacts[] = {
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kFloat16, "float16", 2},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kInt8, "int8", 1},
    {DType::kUInt8, "uint8", 1},
    {DType::kInt16, "int16", 2},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kBool, "bool", 1},
    {DType::kComplex32, "complex32", 4},
    {DType::kComplex64, "complex64", 8},
    {DType::kComplex128, "complex128", 16},
    {DType::kUInt16, "uint16", 2},
    {DType::kUInt32, "uint32", 4},
    {DType::kUInt64, "uint64", 8},
    {DType::kFloat8E4M3Fn, "float8_e4m3fn", 1},
    {DType::kFloat8E5M2, "float8_e5m2", 1},
    {DType::kFloat8E4M3FnUz, "float8_e4m3fnuz", 1},
    {DType::kFloat8E5M2FnUz, "float8_e5m2fnuz", 1},
    {DType::kFloat8E8M0Fnu, "float8_e8m0fnu", 1},
    {DType::kFloat4E2M1FnX2, "float4_e2m1fn_x2", 1},
};

constexpr bool in_order_of_enum() {
  std::size_t value = 1;
  for (const DTypeFacts& facts : kFacts)
    if (static_cast<std::size_t>(facts.dtype) != value++) return false;
  return true;
}
static_assert(in_order_of_enum() && std::size(kFacts) == kDTypeCount, "the table is looked up by value");

const DTypeFacts* facts_of(DType dtype) {
  // kUnknown is 0: the subtraction wraps around, and the index is refused.
  const auto index = static_cast<std::size_t>(dtype) - 1;
  return index < std::size(kFacts) ? &kFacts[index] : nullptr;
}

}  // namespace

std::size_t element_size(DType dtype) noexcept {
  const DTypeFacts* facts = facts_of(dtype);
  return facts ? facts->bytes : 0;
}

const char* to_string(DType dtype) noexcept {
  const DTypeFacts* facts = facts_of(dtype);
  return facts ? facts->name : "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeFacts& facts : kFacts)
    if (facts.name == name) return facts.dtype;
  return std::nullopt;
}

bool is_dtype_name(std::string_view name) noexcept {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  if (name.find_first_not_of(kCharacters) != std::string_view::npos) return false;
  const auto letters = name.find_first_not_of(kCharacters.substr(0, 26));
  // Among the names of element types, "bool" alone has no digit.
  if (letters == std::string_view::npos) return dtype_from_name(name).has_value();
  return letters > 0 && name[letters] != '_';
}

}  // namespace cairn
