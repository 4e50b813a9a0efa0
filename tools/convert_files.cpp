// Converts to the single-file formats: safetensors, and the one that torch.load reads.
#include <filesystem>
#include <unordered_map>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cairn/planning/pieces.hpp>
#include <cairn/state/leaf_writer.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/safetensors.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/conversion.hpp>
#include <cairn/tools/partial_file.hpp>

namespace cairn::tools {
namespace {

ByteSpan bytes_of(const torch::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

// Runs `write`, which writes a file sequentially. If it fails for a reason that may pass, keeps the
// written part for the next run.
template <class Write>
void written(PartialFile& file, Write&& write) {
  try {
    write();
  } catch (const Error& error) {
    const bool may_pass = error.code() == ErrorCode::kNoSpace || error.code() == ErrorCode::kUnavailable;
    if (may_pass) file.keep_for_later();
    if (!file.is_kept()) throw;
    throw Error(error.code(), fmt::format("{}. The same command goes on from where it came to", error.what()));
  }
}

// Records the progress after every `every` bytes.
class Milestones {
 public:
  Milestones(PartialFile& file, std::uint64_t every) : file_(file), every_(every) {}
  template <class MakePlace>
  void passed(std::uint64_t bytes, MakePlace&& make_place) {
    since_ += bytes;
    if (since_ < every_) return;
    file_.record(make_place());
    since_ = 0;
  }

 private:
  PartialFile& file_;
  const std::uint64_t every_;
  std::uint64_t since_ = 0;
};

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
    const std::string reason = conversion.source().why_unreadable(key.source);
    return reason.empty() ? safetensors_objection(key.key, key.dtype) : reason;
  });
  std::unordered_map<std::string, const ConvertedKey*> by_name;
  std::vector<SafetensorsTensor> tensors;
  for (const ConvertedKey& key : conversion.keys()) {
    by_name[key.key] = &key;
    tensors.push_back({key.key, key.dtype, key.stored.size, {}, {}});
  }
  const Metadata& metadata = conversion.source().metadata();
  std::map<std::string, std::string> pairs{{"format", "pt"}};  // loaders ask for it
  if (metadata.commit && metadata.commit->step) pairs["step"] = std::to_string(*metadata.commit->step);
  if (metadata.commit) pairs["cairn_save_id"] = metadata.save_id;
  const SafetensorsLayout layout = lay_out_safetensors(std::move(tensors), pairs);

  PartialFile file(options.destination, conversion.identity(), existing_of(options));
  const bool resumed = !file.recorded().is_null();
  std::uint64_t at = layout.head.size();
  written(file, [&] {
    const std::uint64_t there = resumed ? file.recorded().at("bytes").get<std::uint64_t>() : 0;
    Milestones milestones(file, options.memory);
    file.write_at(0, layout.head);
    for (const SafetensorsTensor& tensor : layout.tensors) {
      const ConvertedKey& key = *by_name.at(tensor.name);
      for_each_piece(key.stored.size, conversion.piece_elements(key), [&](const Box& box, std::int64_t) {
        const std::uint64_t bytes = static_cast<std::uint64_t>(volume(box.sizes)) * element_size(key.dtype);
        if (at + bytes > there) {
          file.write_at(at, bytes_of(conversion.read(key, box)));
          milestones.passed(bytes, [&] { return Json{{"bytes", at + bytes}}; });
        }
        at += bytes;
      });
    }
    file.finish(at);
  });
  return {layout.tensors.size(), 0, at, resumed};
}

Converted convert_to_torch(Conversion& conversion) {
  const ConvertOptions& options = conversion.options();
  require_file_destination(options.destination);
  const Skeleton skeleton = skeleton_of(conversion);
  const PickledValue pickled = pickle_value(skeleton.tree, BlobsAs::kBytes, skeleton.carried);

  PartialFile file(options.destination, conversion.identity(), existing_of(options));
  const bool resumed = !file.recorded().is_null();
  std::uint64_t length = 0;
  written(file, [&] {
    // The progress of an earlier run: `checksums` of the tensors written, of which the last has
    // only its first `part` bytes.
    std::vector<std::uint32_t> checksums;
    std::uint64_t part = 0;
    if (resumed) {
      file.recorded().at("crc32").get_to(checksums);
      file.recorded().at("part").get_to(part);
    }
    Milestones milestones(file, options.memory);
    std::vector<std::uint32_t> done;
    TorchArchiveWriter archive(pickled.pickle, [&](std::uint64_t offset, ByteSpan bytes) { file.write_at(offset, bytes); });
    for (std::size_t i = 0; i < pickled.tensors.size(); ++i) {
      const auto found = skeleton.tensors.find(pickled.tensors[i].unsafeGetTensorImpl());
      if (found == skeleton.tensors.end()) {  // a tensor inside a value: it is small, and already in memory
        archive.begin_storage(pickled.tensors[i].nbytes());
        archive.append(bytes_of(pickled.tensors[i]));
        done.push_back(archive.storage_crc32());
        archive.end_storage();
        continue;
      }
      const ConvertedKey& key = *found->second;
      archive.begin_storage(key.bytes());
      const bool is_whole = i + 1 < checksums.size() || (i + 1 == checksums.size() && part == key.bytes());
      const std::uint64_t there = is_whole ? key.bytes() : i + 1 == checksums.size() ? part : 0;
      if (there > 0) archive.pass_over(there, checksums[i]);
      for_each_piece(key.stored.size, conversion.piece_elements(key), [&](const Box& box, std::int64_t begin) {
        const std::uint64_t at = static_cast<std::uint64_t>(begin) * element_size(key.dtype);
        const std::uint64_t bytes = static_cast<std::uint64_t>(volume(box.sizes)) * element_size(key.dtype);
        if (at < there) return;
        archive.append(bytes_of(conversion.read(key, box)));
        milestones.passed(bytes, [&] {
          std::vector<std::uint32_t> all = done;
          all.push_back(archive.storage_crc32());
          return Json{{"crc32", all}, {"part", at + bytes}};
        });
      });
      done.push_back(archive.storage_crc32());
      archive.end_storage();
    }
    length = archive.finish();
    file.finish(length);
  });
  return {pickled.tensors.size(), skeleton.values, length, resumed};
}

}  // namespace cairn::tools
