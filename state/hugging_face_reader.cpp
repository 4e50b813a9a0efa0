// Reads safetensors files.
#include <cairn/state/hugging_face_format.hpp>

#include <algorithm>
#include <regex>
#include <set>
#include <unordered_map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/planning/require_coverage.hpp>
#include <cairn/state/block_scales.hpp>
#include <cairn/state/read_part.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

constexpr const char* kScalesEnd = "_scale_inv";  // follows the name of a quantised weight
// Ten times what the largest models need. A larger index is damage, and is not read into memory.
constexpr std::uint64_t kIndexBytesMax = 100'000'000;

// Whether weights can be loaded as this type, and scales stored in it.
bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

SafetensorsFiles index_at(Store& store, const ObjectName& name) {
  const std::uint64_t bytes = store.size_bytes(name);
  if (bytes > kIndexBytesMax) throw Error(ErrorCode::kCorrupt, child_url(store.url(), name) + " is too large for an index");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  store.read(name, {{0, {text.data(), text.size()}}});
  return read_safetensors_index(text, child_url(store.url(), name));
}

// Throws if a file of a set model-<file>-of-<files> is missing. Of distributed files each must be
// there for some rank: PyTorch makes none for a rank that has no tensor of it.
void require_whole_sets(Store& store, const SafetensorsFiles& files) {
  static const std::regex pattern("(shard-[0-9]{5,9}-)?model-([0-9]{5,9})-of-([0-9]{5,9})" + std::string(kSafetensorsEnd));
  std::map<std::pair<bool, std::size_t>, std::set<std::size_t>> sets;  // by whether they are distributed, and the number of files
  for (const auto& [name, promised] : files)
    if (std::smatch found; std::regex_match(name, found, pattern))
      sets[{found[1].matched, std::stoul(found[3])}].insert(std::stoul(found[2]));
  for (const auto& [set, found] : sets)
    for (std::size_t file = 1; file <= set.second; ++file)
      if (found.count(file) == 0)
        throw Error(ErrorCode::kNotFound, store.url() + " lacks " + (set.first ? "shard-*-" : "") +
                                              HuggingFaceFormat::file_name(file - 1, set.second) +
                                              ", one of a set of files. Complete the set, or remove the other files of it");
}

// Adds a tensor, or a part of one, to the metadata.
void add(const StoredSafetensor& tensor, std::uint32_t file, const std::string& what, Metadata& metadata,
         std::unordered_map<std::string, std::size_t>& entries) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kCorrupt, "\"" + printable(tensor.name) + "\" " + why + ". One of its files is " + what);
  };
  const Extents offsets = tensor.offsets ? *tensor.offsets : Extents::filled(tensor.shape.size(), 0);
  const auto [found, is_new] = entries.emplace(tensor.name, metadata.state_dict_metadata.size());
  if (is_new) {
    TensorStorageMetadata made;
    made.properties.dtype = tensor.dtype;
    if (tensor.dtype == DType::kUnknown) made.unknown_dtype = tensor.type;
    made.size = tensor.size ? *tensor.size : Extents::filled(tensor.shape.size(), 0);
    metadata.state_dict_metadata.emplace_back(tensor.name, std::move(made));
  }
  auto& stored = std::get<TensorStorageMetadata>(metadata.state_dict_metadata[found->second].second);
  if (!is_new && !tensor.offsets) refuse("is in two files, and the header does not say that it is a part: name one of the files");
  if (stored.properties.dtype != tensor.dtype || stored.size.size() != tensor.shape.size())
    refuse("has parts of different types or numbers of dimensions");
  if (tensor.size && *tensor.size != stored.size) refuse("has parts that name different sizes of the whole tensor");
  // PyTorch does not say how large the whole tensor is: its parts reach its ends.
  if (!tensor.size)
    for (std::size_t dim = 0; dim < offsets.size(); ++dim)
      stored.size[dim] = std::max(stored.size[dim], offsets[dim] + tensor.shape[dim]);
  stored.chunks.push_back({offsets, tensor.shape});
  StorageInfo place;
  place.file = file;
  place.offset = place.payload_offset = tensor.offset;
  place.length = tensor.bytes();
  stored.storage.push_back(place);
}

}  // namespace

SafetensorsFiles find_safetensors_files(Store& store, const std::string& index) {
  if (!index.empty()) return index_at(store, index);
  // Without listing, because a directory of models may have much below it.
  if (store.exists(kSafetensorsIndexName)) return index_at(store, kSafetensorsIndexName);
  SafetensorsFiles files;
  std::vector<ObjectName> indexes;
  for (const ObjectInfo& object : store.list()) {
    if (object.name.find('/') != std::string::npos) continue;
    if (ends_with(object.name, kSafetensorsIndexEnd)) indexes.push_back(object.name);
    if (ends_with(object.name, kSafetensorsEnd)) files[object.name];
  }
  if (indexes.size() > 1)
    throw Error(ErrorCode::kCorrupt,
                store.url() + " holds several indexes of safetensors files: " + indexes[0] + " and " + indexes[1]);
  if (!indexes.empty()) return index_at(store, indexes[0]);
  if (files.empty()) return files;
  // In this order: a save that is published has its record before its attempt is gone.
  const bool has_attempt = !store.open_attempts().empty() || !store.fenced_attempts().empty();
  if (store.is_taken(kCommitRecordName)) return files;  // of a save that has ended, perhaps since the listing
  if (has_attempt)
    throw Error(ErrorCode::kCorrupt, store.url() + " holds safetensors files, but neither " + kCommitRecordName +
                                         " nor an index: a save to this place is under way, or died. Wait for it, or remove " +
                                         "what it left");
  require_whole_sets(store, files);
  return files;
}

HuggingFaceStorageReader::HuggingFaceStorageReader(const HuggingFaceReaderOptions& options)
    : CheckpointReader(options.reader), options_(options) {
  if (options_.dequantize_to && (!is_float(*options_.dequantize_to) || options_.block_size < 1))
    throw Error(ErrorCode::kInvalidArgument, "dequantize_to is " + std::string(to_string(*options_.dequantize_to)) +
                                                 " with a block_size of " + std::to_string(options_.block_size) +
                                                 ": use float32, float16 or bfloat16, and blocks of 1 or more");
}

void HuggingFaceStorageReader::reset(const std::string& checkpoint_id) {
  CheckpointReader::reset(checkpoint_id);
  quantized_.clear();
  stored_.reset();
}

Metadata HuggingFaceStorageReader::read_metadata() {
  Store& store = opened();
  if (store.is_taken(kCommitRecordName)) return with_target_types(CheckpointReader::read_metadata());
  const SafetensorsFiles files = find_safetensors_files(store);
  // A save that was under way at the listing may have ended since: `files` may lack some of it.
  if (store.is_taken(kCommitRecordName)) return with_target_types(CheckpointReader::read_metadata());
  if (files.empty())
    throw Error(ErrorCode::kNotFound, "there are no safetensors files at " + store.url() + ": neither " + kCommitRecordName +
                                          " nor any name that ends in " + kSafetensorsEnd + ". Check the path");
  return read_metadata_of(files);
}

Metadata HuggingFaceStorageReader::read_metadata_of(const SafetensorsFiles& files) {
  Store& store = opened();
  Metadata metadata;
  std::unordered_map<std::string, std::size_t> entries;
  for (const auto& [name, promised] : files) {
    const std::string what = child_url(store.url(), name);
    const std::uint64_t length = store.size_bytes(name);
    const auto read = [&store, &file = name](std::uint64_t offset, MutableByteSpan to) { store.read(file, {{offset, to}}); };
    std::set<std::string> missing = promised;
    for (const StoredSafetensor& tensor : read_safetensors(length, read, what)) {
      missing.erase(tensor.name);
      add(tensor, static_cast<std::uint32_t>(metadata.files.size()), what, metadata, entries);
    }
    if (!missing.empty())
      throw Error(ErrorCode::kCorrupt, what + " lacks \"" + printable(*missing.begin()) + "\", which the index says is there");
    FileInfo info;
    info.name = name;
    info.length = length;
    metadata.files.push_back(std::move(info));
  }
  require_coverage(metadata, "cannot read the safetensors files at " + store.url());
  return with_target_types(std::move(metadata));
}

// Remembers quantised weights as they are stored, and gives them the type as which they are loaded.
Metadata HuggingFaceStorageReader::with_target_types(Metadata metadata) {
  quantized_.clear();
  if (!options_.dequantize_to) return metadata;
  for (auto& [name, entry] : metadata.state_dict_metadata) {
    auto* const weight = std::get_if<TensorStorageMetadata>(&entry);
    if (!weight || !ends_with(name, ".weight") || weight->size.size() != 2 || !is_quantized_type(weight->properties.dtype))
      continue;
    const auto* const scales = std::get_if<TensorStorageMetadata>(metadata.find(name + kScalesEnd));
    if (!scales) continue;
    const Extents expected = scales_of(Box::whole(weight->size), options_.block_size).sizes;
    if (scales->size != expected)
      throw Error(ErrorCode::kMismatch, "\"" + printable(name) + kScalesEnd + "\" has the size " + to_string(scales->size) +
                                            ", but blocks of " + std::to_string(options_.block_size) + " need " +
                                            to_string(expected) + ": set block_size");
    if (!is_float(scales->properties.dtype))
      throw Error(ErrorCode::kUnsupported,
                  "\"" + printable(name) + kScalesEnd + "\" is stored as " + to_string(scales->properties.dtype) +
                      ": scales must be float32, float16 or bfloat16. Load the weights as they are stored");
    quantized_[name] = {*weight, *scales};
    weight->properties.dtype = *options_.dequantize_to;
  }
  // Such a tensor would be loaded without its scales, beside others that were multiplied by theirs.
  std::string unscaled;
  for (const auto& [name, entry] : metadata.state_dict_metadata) {
    const auto* const tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (!tensor || quantized_.count(name) != 0) continue;
    const bool has_scales = metadata.find(name + kScalesEnd) != nullptr;
    if (has_scales || tensor->properties.dtype == DType::kFloat8E4M3Fn || tensor->properties.dtype == DType::kFloat8E5M2)
      unscaled += (unscaled.empty() ? "\"" : ", \"") + printable(name) + "\"";
  }
  if (!unscaled.empty())
    throw Error(ErrorCode::kUnsupported, "cannot multiply " + unscaled + " by scales: a weight needs two dimensions, a name that " +
                                             "ends with .weight, and scales of blocks in the tensor of that name with " +
                                             kScalesEnd + ". Load without dequantize_to");
  return metadata;
}

void HuggingFaceStorageReader::set_up_storage_reader(const Metadata& metadata, const StorageContext& context) {
  CheckpointReader::set_up_storage_reader(metadata, context);
  if (quantized_.empty()) return;
  Metadata stored = metadata;
  for (const auto& [name, tensors] : quantized_)
    if (auto* const entry = stored.find(name)) *entry = tensors.weight;
  stored_ = std::make_unique<CheckpointReader>(options_.reader);
  stored_->reset(context.checkpoint_id);
  stored_->set_up_storage_reader(stored, context);
}

Future<bool> HuggingFaceStorageReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  if (quantized_.empty()) return CheckpointReader::read_data(plan, planner);
  LoadPlan others = plan;
  const auto is_quantized = [&](const ReadItem& item) { return quantized_.count(plan.names[item.storage_name]) > 0; };
  others.items.erase(std::remove_if(others.items.begin(), others.items.end(), is_quantized), others.items.end());
  CheckpointReader::read_data(others, planner).get();
  for (const ReadItem& item : plan.items)
    if (is_quantized(item)) dequantize(plan, item, planner);
  return ready_future(true);
}

void HuggingFaceStorageReader::dequantize(const LoadPlan& plan, const ReadItem& item, LoadPlanner& planner) {
  const std::string& name = plan.names[item.storage_name];
  const Quantized& stored = quantized_.at(name);
  const torch::Tensor to = planner.resolve_tensor(plan, item);
  // An element takes 7 to 9 bytes, in its stored type, in float32 and in the target type.
  const auto elements_max = static_cast<std::int64_t>(options_.reader.bytes_in_flight_max / 9);
  for_each_piece(item.lengths, elements_max, [&](const Box& piece, std::int64_t) {
    Box box = piece;
    for (std::size_t dim = 0; dim < box.offsets.size(); ++dim)
      box.offsets[dim] += item.storage_chunk_offset[dim] + item.storage_offsets[dim];
    const torch::Tensor elements = read_part(*stored_, name, stored.weight, box);
    const torch::Tensor factors = read_part(*stored_, name + kScalesEnd, stored.scales, scales_of(box, options_.block_size));
    with_torch("dequantise " + name, [&] {
      part_of(to, piece.offsets, piece.sizes)
          .copy_(dequantize_blocks(elements, stored.weight.properties.dtype, factors, box, options_.block_size,
                                   *scalar_type_of(*options_.dequantize_to)));
    });
  });
  planner.commit_tensor(plan, item, to);
}

}  // namespace cairn
