// Converts to the single-file formats: safetensors, and the one that torch.load reads.
#include <filesystem>
#include <unordered_map>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/formats/safetensors.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/planning/pieces.hpp>
#include <cairn/state/leaf_writer.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/conversion.hpp>
#include <cairn/tools/partial_file.hpp>

namespace cairn::tools {
namespace {

ByteSpan bytes_of(const torch::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

void require_file_destination(const std::string& destination) {
  if (destination.find("://") != std::string::npos)
    throw WrongUse(fmt::format("{} is a URL: the destination must be a file's path", printable(destination)));
  if (destination.empty()) throw WrongUse("the name of the file to write is empty");
  const auto folder = std::filesystem::absolute(destination).parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    throw WrongUse(fmt::format("cannot write {}: there is no directory {}", printable(destination), printable(folder)));
}

Existing existing_of(const ConvertOptions& options) { return options.force ? Existing::kReplaced : Existing::kRefused; }

// A tree with an empty tensor in the place of each tensor of the source.
struct Skeleton {
  StateDict tree;
  std::unordered_map<const void*, const ConvertedKey*> tensors;  // by TensorImpl
  CarriedTypes carried;
  std::size_t values = 0;
};

Skeleton skeleton_of(Conversion& conversion) {
  std::unordered_map<std::string, Value> values;
  conversion.leave_out([&](const ConvertedKey& key) -> std::string {
    if (key.is_tensor) return conversion.source().why_unreadable(key.source);
    try {
      Value value = conversion.source().read_value(key.source);
      pickle_value(value, BlobsAs::kBytes);
      values.emplace(key.source, std::move(value));
      return "";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      return printable(error.what());
    }
  });
  Skeleton skeleton;
  for (const ConvertedKey& key : conversion.keys()) {
    if (!key.is_tensor) {
      set_at(skeleton.tree, key.path, std::move(values.at(key.source)));
      ++skeleton.values;
      continue;
    }
    torch::Tensor placeholder =
        torch::empty(array_of(key.stored.size), torch::TensorOptions().dtype(*carrier_type_of(key.dtype)).device(torch::kMeta));
    if (!scalar_type_of(key.dtype))
      skeleton.carried.emplace(placeholder.unsafeGetTensorImpl(), CarriedType{key.dtype, key.stored.properties.requires_grad, {}});
    else if (key.stored.properties.requires_grad && (placeholder.is_floating_point() || placeholder.is_complex()))
      placeholder.requires_grad_();
    skeleton.tensors.emplace(placeholder.unsafeGetTensorImpl(), &key);
    set_at(skeleton.tree, key.path, std::move(placeholder));
  }
  return skeleton;
}

}  // namespace

Converted convert_to_safetensors(Conversion& conversion) {
  const ConvertOptions& options = conversion.options();
  require_file_destination(options.destination);
  conversion.drop_values();
  conversion.leave_out([&](const ConvertedKey& key) {
    const bool packed = as_packed_bytes(key.stored).has_value();
    const std::string reason = packed ? "" : conversion.source().why_unreadable(key.source);
    return reason.empty() ? safetensors_objection(key.key, packed ? DType::kUInt8 : key.dtype) : reason;
  });
  std::unordered_map<std::string, const ConvertedKey*> by_name;
  std::vector<SafetensorsTensor> tensors;
  for (const ConvertedKey& key : conversion.keys()) {
    by_name[key.key] = &key;
    tensors.push_back({key.key, key.dtype, key.stored.size, {}, {}, key.stored.unknown_dtype, key.bytes()});
  }
  const Metadata& metadata = conversion.source().metadata();
  std::map<std::string, std::string> pairs{{"format", "pt"}};  // loaders ask for it
  if (metadata.commit && metadata.commit->step) pairs["step"] = std::to_string(*metadata.commit->step);
  if (metadata.commit) pairs["cairn_save_id"] = metadata.save_id;
  const SafetensorsLayout layout = lay_out_safetensors(std::move(tensors), pairs);

  PartialFile file(options.destination, existing_of(options));
  std::uint64_t at = layout.head.size();
  file.write_at(0, layout.head);
  for (const SafetensorsTensor& tensor : layout.tensors) {
    const ConvertedKey& key = *by_name.at(tensor.name);
    const auto packed = as_packed_bytes(key.stored);
    for_each_piece(packed ? packed->size : key.stored.size, conversion.piece_elements(key), [&](const Box& box, std::int64_t) {
      const torch::Tensor piece = conversion.read(key, box);
      file.write_at(at, bytes_of(piece));
      at += piece.nbytes();
    });
  }
  file.finish(at);
  return {layout.tensors.size(), 0, at, file.starts_over()};
}

Converted convert_to_torch(Conversion& conversion) {
  const ConvertOptions& options = conversion.options();
  require_file_destination(options.destination);
  const Skeleton skeleton = skeleton_of(conversion);
  const PickledValue pickled = pickle_value(skeleton.tree, BlobsAs::kBytes, skeleton.carried);

  PartialFile file(options.destination, existing_of(options));
  TorchArchiveWriter archive(pickled.pickle, [&](std::uint64_t offset, ByteSpan bytes) { file.write_at(offset, bytes); });
  for (const torch::Tensor& tensor : pickled.tensors) {
    const auto found = skeleton.tensors.find(tensor.unsafeGetTensorImpl());
    if (found == skeleton.tensors.end()) {  // a tensor inside a value: it is small, and already in memory
      archive.begin_storage(tensor.nbytes());
      archive.append(bytes_of(tensor));
    } else {
      const ConvertedKey& key = *found->second;
      archive.begin_storage(key.bytes());
      for_each_piece(key.stored.size, conversion.piece_elements(key),
                     [&](const Box& box, std::int64_t) { archive.append(bytes_of(conversion.read(key, box))); });
    }
    archive.end_storage();
  }
  const std::uint64_t length = archive.finish();
  file.finish(length);
  return {pickled.tensors.size(), skeleton.values, length, file.starts_over()};
}

}  // namespace cairn::tools
