#include <cairn/state/tensor_types.hpp>

#include <ATen/core/enum_type.h>
#include <ATen/core/jit_type.h>

#include <cairn/state/libtorch_compat.hpp>
#include <cairn/state/tensor_memory.hpp>

namespace cairn {
namespace {

struct TypePair {
  DType dtype;
  at::ScalarType scalar;
};

// A short table that is searched: two switches would have to agree with each other.
constexpr TypePair kTypePairs[] = {
    {DType::kFloat32, at::kFloat},
    {DType::kFloat64, at::kDouble},
    {DType::kFloat16, at::kHalf},
    {DType::kBFloat16, at::kBFloat16},
    {DType::kInt8, at::kChar},
    {DType::kUInt8, at::kByte},
    {DType::kInt16, at::kShort},
    {DType::kInt32, at::kInt},
    {DType::kInt64, at::kLong},
    {DType::kBool, at::kBool},
    {DType::kComplex32, at::kComplexHalf},
    {DType::kComplex64, at::kComplexFloat},
    {DType::kComplex128, at::kComplexDouble},
#if CAIRN_LIBTORCH_HAS_WIDE_UNSIGNED
    {DType::kUInt16, at::kUInt16},
    {DType::kUInt32, at::kUInt32},
    {DType::kUInt64, at::kUInt64},
#endif
#if CAIRN_LIBTORCH_HAS_FLOAT8
    {DType::kFloat8E4M3Fn, at::kFloat8_e4m3fn},
    {DType::kFloat8E5M2, at::kFloat8_e5m2},
#endif
#if CAIRN_LIBTORCH_HAS_FLOAT8_FNUZ
    {DType::kFloat8E4M3FnUz, at::kFloat8_e4m3fnuz},
    {DType::kFloat8E5M2FnUz, at::kFloat8_e5m2fnuz},
#endif
#if CAIRN_LIBTORCH_HAS_FLOAT8_E8M0
    {DType::kFloat8E8M0Fnu, at::kFloat8_e8m0fnu},
#endif
#if CAIRN_LIBTORCH_HAS_FLOAT4
    {DType::kFloat4E2M1FnX2, at::kFloat4_e2m1fn_x2},
#endif
};

const std::shared_ptr<c10::EnumType>& dtype_enum() {
  // LibTorch has no IValue for a dtype. An enum of Cairn's own stands for one, and carries its
  // name.
  static const auto type =
      c10::EnumType::create(c10::QualifiedName("__torch__.torch.dtype"), c10::StringType::get(), {}, {});
  return type;
}

constexpr const char* kTorchSize = "__torch__.torch.Size";
constexpr std::size_t kSizeDimsMax = 1024;  // of a torch.Size; longer ones become plain tuples

}  // namespace

std::optional<DType> dtype_of(at::ScalarType type) noexcept {
  for (const TypePair& pair : kTypePairs) {
    if (pair.scalar == type) return pair.dtype;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> scalar_type_of(DType dtype) noexcept {
  for (const TypePair& pair : kTypePairs) {
    if (pair.dtype == dtype) return pair.scalar;
  }
  return std::nullopt;
}

// Elements of a type that LibTorch lacks travel as integers of the same width, whose bytes no
// operation changes.
std::optional<at::ScalarType> carrier_type_of(DType dtype) noexcept {
  if (const auto type = scalar_type_of(dtype)) return type;
  for (const at::ScalarType type : {at::kByte, at::kShort, at::kInt, at::kLong})
    if (c10::elementSize(type) == element_size(dtype)) return type;
  return std::nullopt;
}

c10::IValue dtype_value(const std::string& name) {
  check_invariant(is_dtype_name(name), "a torch.dtype has the name of a type");
  return c10::IValue(c10::make_intrusive<c10::ivalue::EnumHolder>(dtype_enum(), name, c10::IValue(name)));
}

std::optional<std::string> dtype_name_in(const c10::IValue& value) {
  if (!value.isEnum()) return std::nullopt;
  const auto held = value.toEnumHolder();
  return held->type() == dtype_enum() ? std::optional<std::string>(held->name()) : std::nullopt;
}

c10::IValue torch_size_value(std::vector<c10::IValue> sizes) {
  if (sizes.size() > kSizeDimsMax) return c10::ivalue::Tuple::create(std::move(sizes));
  std::vector<std::string> names;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) names.push_back("dim" + std::to_string(dim));
  const std::vector<c10::TypePtr> types(sizes.size(), c10::IntType::get());
  return c10::ivalue::Tuple::createNamed(std::move(sizes),
                                         c10::TupleType::createNamed(c10::QualifiedName(kTorchSize), names, types));
}

bool is_torch_size(const c10::IValue& value) {
  if (!value.isTuple()) return false;
  const auto& elements = value.toTupleRef().elements();
  // Checked first, because asking for the type of a tuple of tuples may take exponential time.
  if (elements.size() > kSizeDimsMax) return false;
  for (const auto& element : elements)
    if (!element.isInt()) return false;
  const auto name = value.toTupleRef().type()->name();
  return name && name->qualifiedName() == kTorchSize;
}

// The texts continue a sentence: "\"weight\" is sparse".
std::string why_not_storable(const torch::Tensor& tensor) {
  std::string reason = why_not_dense(tensor);
  return reason.empty() ? why_without_memory(tensor) : reason;
}

std::string why_not_dense(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "is an undefined tensor";
  // Test this before the layout: quantized tensors have the strided layout, mkldnn tensors their
  // own.
  if (tensor.is_quantized()) return "is quantized";
  if (tensor.is_mkldnn()) return "has mkldnn's layout";
  if (tensor.layout() != at::kStrided) return "is sparse";
  if (tensor.is_nested()) return "is a nested tensor";
  if (tensor.is_meta()) return "is on the meta device, without memory";
  // Such as wrappers of other tensors.
  if (!tensor.has_storage()) return "has no memory of its own";
  if (!dtype_of(tensor.scalar_type())) return std::string("has the type ") + at::toString(tensor.scalar_type());
  return "";
}

torch::Tensor part_of(const torch::Tensor& tensor, const Extents& offsets, const Extents& sizes) {
  const Extents whole = extents_of(tensor.sizes());
  if (!fits(Box{offsets, sizes}, whole)) {
    throw Error(ErrorCode::kInvalidArgument,
                "tensor: the part " + to_string(Box{offsets, sizes}) + " does not lie within " + to_string(whole));
  }
  if (sizes == whole && !tensor.requires_grad()) return tensor;
  // Views of a tensor that requires gradients would be recorded by autograd. Unlike `detach`, this
  // is no operation of LibTorch, which would take longer than to copy a small tensor.
  torch::Tensor part = tensor.tensor_data();
  for (std::size_t dim = 0; dim < whole.size(); ++dim) {
    if (sizes[dim] != whole[dim]) part = part.narrow(static_cast<std::int64_t>(dim), offsets[dim], sizes[dim]);
  }
  return part;
}

void throw_torch_error(const std::string& action, const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  // LibTorch's host allocators report failures as plain c10::Error: only the text tells.
  const bool memory = text.find("alloc") != std::string::npos || text.find("out of memory") != std::string::npos;
  throw Error(memory ? ErrorCode::kUnavailable : ErrorCode::kPrecondition, action + ": LibTorch says: " + text);
}

}  // namespace cairn
