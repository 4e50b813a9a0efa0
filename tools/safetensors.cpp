#include <cairn/tools/safetensors.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/error.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

constexpr std::size_t kHeaderBytesMax = 100'000'000;  // the limit of readers of the format
constexpr std::size_t kHeaderAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::pair<DType, const char*> kTypes[] = {{DType::kFloat64, "F64"},
                                                    {DType::kFloat32, "F32"},
                                                    {DType::kFloat16, "F16"},
                                                    {DType::kBFloat16, "BF16"},
                                                    {DType::kFloat8E4M3Fn, "F8_E4M3"},
                                                    {DType::kFloat8E5M2, "F8_E5M2"},
                                                    {DType::kFloat8E8M0Fnu, "F8_E8M0"},
                                                    {DType::kInt64, "I64"},
                                                    {DType::kInt32, "I32"},
                                                    {DType::kInt16, "I16"},
                                                    {DType::kInt8, "I8"},
                                                    {DType::kUInt64, "U64"},
                                                    {DType::kUInt32, "U32"},
                                                    {DType::kUInt16, "U16"},
                                                    {DType::kUInt8, "U8"},
                                                    {DType::kBool, "BOOL"}};

// Returns the format's name of a type; nullptr if it has none.
const char* type_name_of(DType dtype) {
  for (const auto& [type, name] : kTypes)
    if (type == dtype) return name;
  return nullptr;
}

DType dtype_of(const std::string& type_name) {
  for (const auto& [type, name] : kTypes)
    if (type_name == name) return type;
  return DType::kUnknown;
}

std::uint64_t header_bytes(ByteSpan file) {
  std::uint64_t bytes = 0;
  for (std::size_t i = sizeof bytes; i > 0; --i) bytes = bytes << 8 | static_cast<unsigned char>(file.data()[i - 1]);
  return bytes;
}

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
        {"dtype", type_name_of(tensor.dtype)}, {"shape", tensor.shape.to_vector()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

}  // namespace

std::string safetensors_objection(const std::string& name, DType dtype) {
  if (type_name_of(dtype) == nullptr) return fmt::format("the format has no type {}", to_string(dtype));
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

Json::parser_callback_t depth_limit(const Error& refusal) {
  constexpr int kDepthMax = 4;
  return [refusal](int depth, Json::parse_event_t, Json&) {
    if (depth > kDepthMax) throw refusal;
    return true;
  };
}

bool is_safetensors(ByteSpan file) {
  return file.size() > sizeof(std::uint64_t) && file.data()[sizeof(std::uint64_t)] == '{' &&
         header_bytes(file) <= file.size() - sizeof(std::uint64_t);
}

std::vector<StoredSafetensor> read_safetensors(ByteSpan file, const std::string& what) {
  const auto refuse = [&](const std::string& why) -> Error {
    return Error(ErrorCode::kCorrupt, fmt::format("{} is damaged, or not a safetensors file: {}", what, why));
  };
  std::vector<StoredSafetensor> tensors;
  if (!is_safetensors(file) || header_bytes(file) > kHeaderBytesMax) throw refuse("it has no header");
  const char* const header = file.data() + sizeof(std::uint64_t);
  const std::uint64_t first = sizeof(std::uint64_t) + header_bytes(file);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ends;
  try {
    const Json described = Json::parse(header, file.data() + first, depth_limit(refuse("its header is nested too deeply")));
    for (const auto& [name, entry] : described.items()) {
      if (name == kMetadataKey) continue;
      StoredSafetensor tensor;
      tensor.name = name;
      tensor.type = entry.at("dtype");
      tensor.dtype = dtype_of(tensor.type);
      tensor.shape = Extents(entry.at("shape").get<std::vector<std::int64_t>>());
      const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::uint64_t, std::uint64_t>>();
      const std::size_t width = std::max<std::size_t>(1, element_size(tensor.dtype));
      const auto elements = static_cast<std::uint64_t>(volume(tensor.shape));
      const bool fits = begin <= end && end <= file.size() - first;
      // A type that is not known here may pack several elements into a byte.
      const bool agrees =
          tensor.dtype == DType::kUnknown || (elements <= file.size() / width && elements * width == end - begin);
      if (!fits || !agrees)
        throw refuse(fmt::format("shape and place of \"{}\" do not fit", printable(name)));
      tensor.offset = first + begin;
      ends.emplace_back(begin, end);
      tensors.push_back(std::move(tensor));
    }
  } catch (const Json::exception& error) {
    throw refuse(std::string("its header: ") + error.what());
  } catch (const Error& error) {  // a shape that cannot be
    throw error.code() == ErrorCode::kInvalidArgument ? refuse(error.what()) : error;
  }
  std::sort(ends.begin(), ends.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : ends)
    if (std::exchange(at, end) != begin) throw refuse("its tensors overlap, or leave a hole");
  if (at != file.size() - first) throw refuse("it does not end with its last tensor");
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return tensors;
}

}  // namespace cairn::tools
