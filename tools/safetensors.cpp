#include <cairn/tools/safetensors.hpp>

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kHeaderBytesMax = 100'000'000;  // the limit of readers of the format
constexpr std::size_t kHeaderAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";

std::string little_endian(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string header_of(const std::vector<SafetensorsTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes();
    header[tensor.name] = {
        {"dtype", *safetensors_type(tensor.dtype)}, {"shape", tensor.shape.to_vector()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

}  // namespace

std::optional<std::string> safetensors_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "F64";
    case DType::kFloat32:
      return "F32";
    case DType::kFloat16:
      return "F16";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat8E4M3Fn:
      return "F8_E4M3";
    case DType::kFloat8E5M2:
      return "F8_E5M2";
    case DType::kFloat8E8M0Fnu:
      return "F8_E8M0";
    case DType::kInt64:
      return "I64";
    case DType::kInt32:
      return "I32";
    case DType::kInt16:
      return "I16";
    case DType::kInt8:
      return "I8";
    case DType::kUInt64:
      return "U64";
    case DType::kUInt32:
      return "U32";
    case DType::kUInt16:
      return "U16";
    case DType::kUInt8:
      return "U8";
    case DType::kBool:
      return "BOOL";
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kFloat8E4M3FnUz:
    case DType::kFloat8E5M2FnUz:
    case DType::kFloat4E2M1FnX2:
    case DType::kUnknown:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string safetensors_objection(const std::string& name, DType dtype) {
  if (!safetensors_type(dtype)) return fmt::format("the format has no type {}", to_string(dtype));
  if (name == kMetadataKey) return "the format keeps this name for itself";
  try {
    (void)nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    return "the name is not valid UTF-8";
  }
  return "";
}

SafetensorsLayout lay_out_safetensors(std::vector<SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const auto size_a = element_size(a.dtype), size_b = element_size(b.dtype);
    return std::tie(size_b, a.name) < std::tie(size_a, b.name);
  });
  const std::string header = header_of(tensors, metadata);
  if (header.size() > kHeaderBytesMax)
    throw Error(ErrorCode::kUnsupported, fmt::format("the header for {} tensors takes {} bytes, the format allows {}",
                                                     tensors.size(), header.size(), kHeaderBytesMax));
  return {std::move(tensors), little_endian(header.size()) + header};
}

}  // namespace cairn::tools
