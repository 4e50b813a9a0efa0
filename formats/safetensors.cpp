#include <cairn/formats/safetensors.hpp>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/git_lfs.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kHeaderBytesMax = 100'000'000;  // the limit of readers of the format
constexpr std::size_t kHeaderAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kPartsKey = "DCP_SHARDING_INFO";  // within it, as PyTorch writes it: JSON in a string
constexpr const char* kOffsetsKey = "saved_offsets";
constexpr const char* kSizeKey = "global_shape";  // Cairn's own; PyTorch ignores it

constexpr std::pair<DType, const char*> kTypes[] = {{DType::kFloat64, "F64"},
                                                    {DType::kFloat32, "F32"},
                                                    {DType::kFloat16, "F16"},
                                                    {DType::kBFloat16, "BF16"},
                                                    {DType::kFloat8E4M3Fn, "F8_E4M3"},
                                                    {DType::kFloat8E5M2, "F8_E5M2"},
                                                    {DType::kFloat8E8M0Fnu, "F8_E8M0"},
                                                    {DType::kFloat8E4M3FnUz, "F8_E4M3FNUZ"},
                                                    {DType::kFloat8E5M2FnUz, "F8_E5M2FNUZ"},
                                                    {DType::kFloat4E2M1FnX2, "F4"},
                                                    {DType::kComplex64, "C64"},
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

// Sets `dtype` by `type`. PyTorch's type for F4 has two numbers in an element.
void set_dtype(SafetensorsTensor& tensor) {
  tensor.dtype = DType::kUnknown;
  for (const auto& [type, name] : kTypes)
    if (tensor.type == name) tensor.dtype = type;
  if (tensor.dtype != DType::kFloat4E2M1FnX2) return;
  const std::size_t dims = tensor.shape.size();
  if (dims > 0 && tensor.shape[dims - 1] % 2 == 0)
    tensor.shape[dims - 1] /= 2;
  else
    tensor.dtype = DType::kUnknown;
}

// Returns the bits of an element of a type that Cairn lacks; 0 for types that are not known here.
std::uint64_t bits_of(const std::string& type) { return type == "F4" ? 4 : type == "F6_E2M3" || type == "F6_E3M2" ? 6 : 0; }

// Throws what `refuse` returns for a value nested too deeply, which could overflow the stack, and
// for two equal keys of an object, of which readers choose different ones.
template <class Text, class Refuse>
Json parse_flat(const Text& text, const Refuse& refuse) {
  constexpr std::size_t kDepthMax = 4;
  std::set<std::string> keys[kDepthMax + 1];  // of the current object at each depth
  return Json::parse(text.begin(), text.end(), [&](int level, Json::parse_event_t event, Json& value) {
    const auto depth = static_cast<std::size_t>(level);
    if (depth > kDepthMax) throw refuse("is nested too deeply");
    if (event == Json::parse_event_t::object_start && depth < kDepthMax) keys[depth + 1].clear();
    if (event == Json::parse_event_t::key && !keys[depth].insert(value.get<std::string>()).second)
      throw refuse("has \"" + printable(value.get<std::string>()) + "\" twice");
    return true;
  });
}

// Lists the tensors in file order.
std::string header_text(const std::vector<SafetensorsTensor>& tensors, std::map<std::string, std::string> metadata) {
  using Ordered = nlohmann::ordered_json;
  Ordered::object_t header;
  header.emplace_back(kMetadataKey, nullptr);
  Json parts = Json::object();
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes();
    std::vector<std::int64_t> shape = tensor.shape.to_vector();
    if (tensor.dtype == DType::kFloat4E2M1FnX2) shape.empty() ? shape.push_back(2) : void(shape.back() *= 2);
    // Appends without searching for the name: a large model would take quadratic time.
    header.emplace_back(tensor.name, Ordered{{"dtype", tensor.dtype == DType::kUnknown ? tensor.type : type_name_of(tensor.dtype)},
                                             {"shape", std::move(shape)},
                                             {"data_offsets", {offset, end}}});
    if (tensor.offsets) parts[tensor.name][kOffsetsKey] = tensor.offsets->to_vector();
    if (tensor.size) parts[tensor.name][kSizeKey] = tensor.size->to_vector();
    offset = end;
  }
  if (!parts.empty()) {
    metadata[kPartsKey] = parts.dump();
    metadata["DCP_VERSION"] = "1.0";
  }
  header.front().second = metadata;
  std::string text = Ordered(std::move(header)).dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

// `get` alone would round numbers such as 2.7.
template <class Integer>
std::vector<Integer> integers_at(const Json& object, const char* key) {
  const auto& numbers = object.at(key).get_ref<const Json::array_t&>();
  if (!std::all_of(numbers.begin(), numbers.end(), [](const Json& number) { return number.is_number_integer(); }))
    throw Error(ErrorCode::kInvalidArgument, std::string(key) + " has something that is no integer");
  return object.at(key).get<std::vector<Integer>>();
}

Extents extents_at(const Json& object, const char* key) { return Extents(integers_at<std::int64_t>(object, key)); }

// Returns whether `shape` at `offsets` lies within a tensor of at most 2^63 elements.
bool lies_within_tensor(const SafetensorsTensor& tensor) {
  if (!tensor.offsets) return !tensor.size;
  if (tensor.offsets->size() != tensor.shape.size() || (tensor.size && tensor.size->size() != tensor.shape.size())) return false;
  for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    const std::int64_t limit = tensor.size ? (*tensor.size)[dim] : std::numeric_limits<std::int64_t>::max();
    const std::int64_t offset = (*tensor.offsets)[dim];
    if (offset < 0 || offset > limit || tensor.shape[dim] > limit - offset) return false;
  }
  return true;
}

}  // namespace

std::string safetensors_objection(const std::string& name, DType dtype) {
  if (type_name_of(dtype) == nullptr) return std::string("the format has no type ") + to_string(dtype);
  if (name == kMetadataKey) return "the format keeps this name for itself";
  try {
    (void)Json(name).dump();
  } catch (const Json::exception&) {
    return "the name is not valid UTF-8";
  }
  return "";
}

SafetensorsLayout lay_out_safetensors(std::vector<SafetensorsTensor> tensors, std::map<std::string, std::string> metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const auto size_a = element_size(a.dtype), size_b = element_size(b.dtype);
    return std::tie(size_b, a.name) < std::tie(size_a, b.name);
  });
  const std::string header = header_text(tensors, std::move(metadata));
  if (header.size() > kHeaderBytesMax)
    throw Error(ErrorCode::kUnsupported, "the header for " + std::to_string(tensors.size()) + " tensors takes " +
                                             std::to_string(header.size()) + " bytes, the format allows " +
                                             std::to_string(kHeaderBytesMax) + ". Save them in several files");
  Bytes head;
  zip::put_u64(head, header.size());
  return {std::move(tensors), head + header};
}

bool is_safetensors(ByteSpan file) {
  return file.size() > sizeof(std::uint64_t) && file.data()[sizeof(std::uint64_t)] == '{' &&
         zip::get_u64(file.data()) <= file.size() - sizeof(std::uint64_t);
}

std::vector<SafetensorsTensor> read_safetensors(std::uint64_t file_bytes, const ReadBytes& read, const std::string& what) {
  const auto refuse = [&](const std::string& why) -> Error {
    return Error(ErrorCode::kCorrupt, what + " is damaged, or not a safetensors file: " + why);
  };
  std::string header(sizeof(std::uint64_t), '\0');
  if (file_bytes < header.size()) throw refuse("it has no header");
  read(0, {header.data(), header.size()});
  if (is_git_lfs_pointer(header)) throw Error(ErrorCode::kCorrupt, what + ": " + kGitLfsPointer);
  const std::uint64_t length = zip::get_u64(header.data());
  const std::uint64_t first = sizeof(std::uint64_t) + length;
  if (length > file_bytes - sizeof(std::uint64_t)) throw refuse("it has no header");
  if (length > kHeaderBytesMax) {
    read(sizeof(std::uint64_t), {header.data(), 1});
    if (header.front() != '{') throw refuse("it has no header");
    throw Error(ErrorCode::kUnsupported, what + " has a header of " + std::to_string(length) + " bytes, the format allows " +
                                             std::to_string(kHeaderBytesMax) + ". Save it in several files");
  }
  header.resize(static_cast<std::size_t>(length));
  read(sizeof(std::uint64_t), {header.data(), header.size()});
  if (header.empty() || header.front() != '{') throw refuse("it has no header");

  std::vector<SafetensorsTensor> tensors;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ends;
  try {
    const auto refuse_header = [&](const std::string& why) { return refuse("its header " + why); };
    const Json described = parse_flat(header, refuse_header);
    Json parts = Json::object();
    if (const auto metadata = described.find(kMetadataKey); metadata != described.end() && metadata->contains(kPartsKey))
      parts = parse_flat(metadata->at(kPartsKey).get_ref<const std::string&>(), refuse_header);
    for (const auto& [name, entry] : described.items()) {
      if (name == kMetadataKey) continue;
      SafetensorsTensor tensor;
      tensor.name = name;
      tensor.type = entry.at("dtype");
      tensor.shape = extents_at(entry, "shape");
      set_dtype(tensor);
      const std::vector<std::uint64_t> range = integers_at<std::uint64_t>(entry, "data_offsets");
      if (range.size() != 2) throw refuse("\"" + printable(name) + "\" has no begin and end");
      const std::uint64_t begin = range[0], end = range[1];
      if (const auto part = parts.find(name); part != parts.end()) {
        tensor.offsets = extents_at(*part, kOffsetsKey);
        if (part->contains(kSizeKey)) tensor.size = extents_at(*part, kSizeKey);
      }
      const std::size_t width = std::max<std::size_t>(1, element_size(tensor.dtype));
      const auto elements = static_cast<std::uint64_t>(volume(tensor.shape));
      const bool fits = begin <= end && end <= file_bytes - first && lies_within_tensor(tensor);
      const std::uint64_t bits = bits_of(tensor.type);
      const bool agrees = tensor.dtype == DType::kUnknown
                              ? bits == 0 || (elements <= 8 * file_bytes / bits && elements * bits == 8 * (end - begin))
                              : elements <= file_bytes / width && elements * width == end - begin;
      if (!fits || !agrees) throw refuse("shape and place of \"" + printable(name) + "\" do not fit");
      tensor.packed_bytes = end - begin;
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
  if (at != file_bytes - first) throw refuse("it does not end with its last tensor");
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return tensors;
}

SafetensorsIndex read_safetensors_index(ByteSpan text, const std::string& what) {
  SafetensorsIndex files;
  try {
    const Json index =
        parse_flat(text.view(), [&](const std::string& why) { return Error(ErrorCode::kCorrupt, what + " " + why); });
    for (const auto& [key, file] : index.at("weight_map").items()) {
      const std::string name = file.get<std::string>();
      if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
        throw Error(ErrorCode::kCorrupt, what + " names a file outside its directory");
      files[name].insert(key);
    }
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kCorrupt, what + " is not an index of safetensors files: " + error.what());
  }
  if (files.empty()) throw Error(ErrorCode::kCorrupt, what + " names no files");
  return files;
}

std::string write_safetensors_index(const SafetensorsIndex& index, std::uint64_t tensor_bytes) {
  Json names = Json::object();
  for (const auto& [file, keys] : index)
    for (const std::string& key : keys) names[key] = file;
  return Json{{"metadata", {{"total_size", tensor_bytes}}}, {"weight_map", std::move(names)}}.dump(2) + "\n";
}

}  // namespace cairn
