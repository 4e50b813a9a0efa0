// Reads safetensors files.
#include <cairn/state/hugging_face_format.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <torch/torch.h>

#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/elements.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/checkpoint_bytes.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/store_observer.hpp>

namespace cairn {
namespace {

constexpr const char* kScalesEnd = "_scale_inv";  // follows the name of a quantised weight

// Whether weights can be loaded as this type, and scales stored in it.
bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// Returns whether weights of this type may be quantised in blocks, as in DeepSeek's models: the
// elements of each square block share one scale, by which they are multiplied.
bool is_quantized_type(DType dtype) {
  return dtype == DType::kFloat8E4M3Fn || dtype == DType::kFloat8E5M2 || dtype == DType::kInt8;
}

// Returns the box of the scales that cover `box` of a two-dimensional weight. There is one scale
// per block; a block has `block_size` elements in each dimension.
Box scales_of(const Box& box, std::int64_t block_size) {
  Box scales = box;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
    scales.offsets[dim] = box.offsets[dim] / block_size;
    const std::int64_t end = box.offsets[dim] + box.sizes[dim];
    scales.sizes[dim] = end / block_size + (end % block_size != 0) - scales.offsets[dim];
  }
  return scales;
}

// By a table, because the LibTorch in use may lack the type.
torch::Tensor as_float32(const torch::Tensor& weight, DType dtype) {
  if (dtype == DType::kInt8) return weight.to(torch::kFloat32);
  Bytes elements(256, '\0');
  std::iota(elements.begin(), elements.end(), '\0');
  const Bytes table = convert_elements(elements, dtype, DType::kFloat32);
  const torch::Tensor bytes = weight.contiguous();
  torch::Tensor numbers = torch::empty(bytes.sizes(), torch::kFloat32);
  const auto* from = static_cast<const unsigned char*>(bytes.data_ptr());
  auto* to = numbers.data_ptr<float>();
  for (std::int64_t i = 0; i < bytes.numel(); ++i) std::memcpy(to + i, table.data() + from[i] * sizeof(float), sizeof(float));
  return numbers;
}

// Returns the elements of `box` of a weight, multiplied by their scales in float32, as type
// `target`. `weight` holds these elements in carrier_type_of(dtype); `scales` holds the scales in
// scales_of(box, block_size).
torch::Tensor dequantize_blocks(const torch::Tensor& weight, DType dtype, const torch::Tensor& scales, const Box& box,
                                std::int64_t block_size, at::ScalarType target) {
  const Box covered = scales_of(box, block_size);
  const torch::Tensor columns = torch::arange(box.offsets[1], box.offsets[1] + box.sizes[1], torch::kInt64);
  const torch::Tensor by_column = scales.to(torch::kFloat32).index_select(1, columns.floor_divide(block_size) - covered.offsets[1]);
  // One row of blocks at a time, so that the scales are never as large as the weight.
  torch::Tensor numbers = as_float32(weight, dtype);
  for (std::int64_t row = 0; row < covered.sizes[0]; ++row) {
    const std::int64_t begin = std::max(box.offsets[0], (covered.offsets[0] + row) * block_size) - box.offsets[0];
    const std::int64_t end = std::min(box.sizes[0], (covered.offsets[0] + row + 1) * block_size - box.offsets[0]);
    numbers.narrow(0, begin, end - begin).mul_(by_column[row]);
  }
  return numbers.to(target);
}

}  // namespace

HuggingFaceStorageReader::HuggingFaceStorageReader(const HuggingFaceReaderOptions& options)
    : CheckpointReader(options.reader), options_(options) {
  if (options_.dequantize_to && (!is_float(*options_.dequantize_to) || options_.block_size < 1))
    throw Error(ErrorCode::kInvalidArgument, "dequantize_to is " + std::string(to_string(*options_.dequantize_to)) +
                                                 " with a block_size of " + std::to_string(options_.block_size) +
                                                 ": use float32, float16 or bfloat16, and blocks of 1 or more");
}

HuggingFaceStorageReader::~HuggingFaceStorageReader() = default;

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
  return with_target_types(safetensors_metadata(opened(), files));
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
  const auto stored = std::make_shared<Metadata>(metadata);
  for (const auto& [name, tensors] : quantized_)
    if (auto* const entry = stored->find(name)) *entry = tensors.weight;
  stored_ = std::make_unique<CheckpointBytes>(
      observe_operations(open_store(context.checkpoint_id), context.store_observer), stored, options_.reader.verify,
      ReadEngineOptions{options_.reader.threads, options_.reader.bytes_in_flight_max}, context.rank);
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
    const auto read = [&](const std::string& fqn, const TensorStorageMetadata& tensor, const Box& part, Bytes& bytes) {
      bytes = stored_->elements(fqn, tensor, part);
      return torch::from_blob(bytes.data(), array_of(part.sizes), *carrier_type_of(tensor.properties.dtype));
    };
    Bytes weight_bytes, scale_bytes;
    const torch::Tensor elements = read(name, stored.weight, box, weight_bytes);
    const torch::Tensor factors = read(name + kScalesEnd, stored.scales, scales_of(box, options_.block_size), scale_bytes);
    with_torch("dequantise " + name, [&] {
      part_of(to, piece.offsets, piece.sizes)
          .copy_(dequantize_blocks(elements, stored.weight.properties.dtype, factors, box, options_.block_size,
                                   *scalar_type_of(*options_.dequantize_to)));
    });
  });
  planner.commit_tensor(plan, item, to);
}

}  // namespace cairn
