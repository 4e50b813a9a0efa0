#include <cairn/state/torch_save.hpp>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/torch.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/read_part.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/mapped_file.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

// Visits the tensors within a plain value: those in a tuple, as flattening splits all other
// containers of tensors.
template <class Visit>
void for_each_tensor_in(const Value& value, const Visit& visit) {
  if (value.is_tensor()) return visit(value.tensor());
  if (!value.is_ivalue()) return;
  std::unordered_set<const void*> seen;  // a node may be referenced several times
  value.ivalue().visit([&](const c10::IValue& node) {
    if (node.isPtrType() && !seen.insert(node.internalToPointer()).second) return true;
    if (node.isTensor()) visit(node.toTensor());
    return false;
  });
}

// Returns the files beside `path` whose names differ from its name in one number only, for each
// number in it, the last first.
std::vector<std::vector<std::string>> siblings_of(const std::filesystem::path& path) {
  const std::string own = path.filename().string();
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::vector<std::vector<std::string>> siblings;
  for (std::size_t end = own.size(); end > 0; --end) {
    if (!is_digit(own[end - 1]) || (end < own.size() && is_digit(own[end]))) continue;
    std::size_t begin = end;
    while (begin > 0 && is_digit(own[begin - 1])) --begin;
    std::vector<std::string>& found = siblings.emplace_back();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), error)) {
      const std::string name = entry.path().filename().string();
      const std::size_t rest = own.size() - end;
      if (name == own || name.size() <= begin + rest || name.compare(0, begin, own, 0, begin) != 0 ||
          name.compare(name.size() - rest, rest, own, end, rest) != 0)
        continue;
      if (std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin), name.end() - static_cast<std::ptrdiff_t>(rest), is_digit))
        found.push_back(entry.path().string());
    }
    std::sort(found.begin(), found.end());
  }
  return siblings;
}

// Returns the part of a DTensor that a value is; null if it is none.
const SavedPart* saved_part_in(const Value& value) {
  const auto* const opaque = value.is_opaque() ? dynamic_cast<const SavedOpaque*>(&value.opaque()) : nullptr;
  return opaque && opaque->part() ? &*opaque->part() : nullptr;
}

}  // namespace

struct TorchSaveReader::Implementation {
  // `alone`: without joining the parts of DTensors.
  explicit Implementation(const std::string& path, const std::string& key = "", bool alone = false)
      : file(path), archive(file.bytes(), printable(path)) {
    const Dict saved = read_saved_dict(
        archive, [this](const std::string& storage, at::ScalarType type) { return elements_of(storage, type); }, carried, key);
    FlatStateDict opaque, flat = flatten(saved);
    if (!alone) join_parts(flat, path);
    for (FlatEntry& entry : flat) {
      if (alone && saved_part_in(entry.value)) parts.emplace(entry.fqn, *saved_part_in(entry.value));
      if (entry.value.is_opaque()) opaque.push_back(entry);
      add(std::move(entry));
    }
    for (const FlatEntry& entry : opaque) add_tensors_in(entry, dynamic_cast<const SavedOpaque&>(entry.value.opaque()).tensors());
  }

  // Makes tensors of the DTensors that this file and its siblings have all parts of.
  void join_parts(FlatStateDict& flat, const std::filesystem::path& path) {
    const auto is_part = [](const FlatEntry& entry) { return saved_part_in(entry.value) != nullptr; };
    if (std::none_of(flat.begin(), flat.end(), is_part)) return;
    for (const std::vector<std::string>& names : siblings_of(path)) {
      std::vector<std::unique_ptr<Implementation>> opened;
      for (const std::string& name : names) {
        try {
          opened.push_back(std::make_unique<Implementation>(name, "", true));
        } catch (const Error&) {  // of another format, or damaged: it has no part
        }
      }
      for (FlatEntry& entry : flat) {
        const SavedPart* const own = saved_part_in(entry.value);
        if (!own) continue;
        std::vector<Box> boxes{own->box};
        std::vector<torch::Tensor> tensors{own->local};
        for (const auto& sibling : opened) {
          const auto found = sibling->parts.find(entry.fqn);
          if (found == sibling->parts.end()) continue;
          const SavedPart& part = found->second;
          if (part.size != own->size || sibling->type_of(part.local) != type_of(own->local)) continue;
          if (std::find(boxes.begin(), boxes.end(), part.box) != boxes.end()) continue;
          boxes.push_back(part.box);
          tensors.push_back(part.local);
        }
        if (!check_coverage(entry.fqn, own->size, boxes).empty()) continue;
        joined.emplace(entry.fqn, Joined{own->size, std::move(boxes), tensors});
        entry.value = tensors.front();
      }
      for (auto& sibling : opened) {
        carried.insert(sibling->carried.begin(), sibling->carried.end());
        siblings.push_back(std::move(sibling));
      }
    }
  }

  // Parts of one tensor must agree in it.
  std::string type_of(const torch::Tensor& tensor) const { return describe(tensor).type_name(); }

  void add(FlatEntry entry) {
    if (values.count(entry.fqn) > 0) return;
    std::string opaque = entry.value.is_opaque() ? printable(entry.value.opaque().name()) : "";
    if (const SavedPart* const part = saved_part_in(entry.value))
      opaque += ", of which there is only the part " + to_string(part->box) + " of size " + to_string(part->size);
    Metadata::Entry described = BytesStorageMetadata{{}, std::move(opaque)};
    if (entry.value.is_tensor()) {
      TensorStorageMetadata tensor = describe(entry.value.tensor());
      if (const auto found = joined.find(entry.fqn); found != joined.end()) {
        tensor.size = found->second.size;
        tensor.chunks = found->second.boxes;
      }
      described = std::move(tensor);
    }
    metadata.state_dict_metadata.emplace_back(entry.fqn, std::move(described));
    metadata.planner_data.emplace_back(entry.fqn, std::move(entry.path));
    values.emplace(std::move(entry.fqn), std::move(entry.value));
  }

  // Lists the tensors of an opaque value below its name. A key of the file itself keeps its name.
  void add_tensors_in(const FlatEntry& above, const Dict& tensors) {
    for (const auto& [key, value] : tensors) {
      FlatEntry entry{above.fqn + "." + key, above.path, value};
      entry.path.emplace_back(key);
      value.is_dict() ? add_tensors_in(entry, value.dict()) : add(std::move(entry));
    }
  }

  // Returns what the file says of a tensor, whose LibTorch type may only carry its bytes.
  TensorStorageMetadata describe(const torch::Tensor& tensor) const {
    TensorStorageMetadata stored;
    if (const auto found = carried.find(tensor.unsafeGetTensorImpl()); found != carried.end()) {
      stored.properties.dtype = found->second.dtype;
      stored.properties.requires_grad = found->second.requires_grad;
      stored.unknown_dtype = found->second.unknown_dtype;
    } else {
      stored.properties.dtype = *dtype_of(tensor.scalar_type());
      stored.properties.requires_grad = tensor.requires_grad();
    }
    stored.size = extents_of(tensor.sizes());
    stored.chunks = {Box::whole(stored.size)};
    return stored;
  }

  // Returns the elements of a storage without a copy, if the file has them aligned.
  torch::Tensor elements_of(const std::string& key, at::ScalarType type) {
    const TorchArchive::Storage storage = archive.storage(key);
    const auto width = static_cast<std::uint64_t>(c10::elementSize(type));
    const auto count = static_cast<std::int64_t>(storage.size_bytes / width);
    char* const begin = file.begin() + storage.offset;
    if (reinterpret_cast<std::uintptr_t>(begin) % width != 0) {  // not aligned: written by a program other than torch.save
      const Bytes bytes = archive.read_storage(key);
      torch::Tensor copied = torch::empty({count}, type);
      if (count > 0) std::memcpy(copied.data_ptr(), bytes.data(), copied.nbytes());
      return copied;
    }
    if (count > 0) unchecked.emplace(begin, storage);
    return torch::from_blob(begin, {count}, torch::TensorOptions().dtype(type));
  }

  // Compares a tensor's storage with its checksum, once.
  void check_storage(const torch::Tensor& tensor) {
    for (const auto& sibling : siblings) sibling->check_storage(tensor);
    const auto found = unchecked.find(tensor.storage().data());
    if (found == unchecked.end()) return;
    const auto [begin, storage] = *found;
    if (storage.crc32 && crc32(0, {begin, storage.size_bytes}) != *storage.crc32)
      throw Error(ErrorCode::kCorrupt, archive.what() + " is damaged: the checksum of a tensor's elements does not match");
    unchecked.erase(found);
  }

  const MappedFile file;
  const TorchArchive archive;
  Metadata metadata;
  std::unordered_map<std::string, Value> values;
  CarriedTypes carried;
  std::map<const void*, TorchArchive::Storage> unchecked;  // by the address of their first byte
  // The parts of DTensors, and those that are joined, by name.
  struct Joined {
    Extents size;
    std::vector<Box> boxes;
    std::vector<torch::Tensor> tensors;  // one per box
  };
  // With `alone`, by name.
  std::unordered_map<std::string, SavedPart> parts;
  std::unordered_map<std::string, Joined> joined;
  std::vector<std::unique_ptr<Implementation>> siblings;  // the owners of tensors in `joined`
};

TorchSaveReader::TorchSaveReader(std::string key) : key_(std::move(key)) {}
TorchSaveReader::~TorchSaveReader() = default;

void TorchSaveReader::reset(const std::string& checkpoint_id) {
  path_ = checkpoint_id;
  implementation_.reset();
}

Metadata TorchSaveReader::read_metadata() {
  const auto path = local_path(path_);
  if (!path) throw Error(ErrorCode::kUnsupported, "cannot read " + path_ + ": files of torch.save are read from directories only");
  implementation_ = std::make_unique<Implementation>(path->string(), key_, !key_.empty());
  return implementation_->metadata;
}

void TorchSaveReader::set_up_storage_reader(const Metadata&, const StorageContext&) {}

Future<bool> TorchSaveReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  for (const ReadItem& item : plan.items) {
    const std::string& name = plan.names[item.storage_name];
    if (item.type == LoadItemType::kByteIO) {
      planner.load_bytes(plan, item, serialize_leaf(value(name)));
      continue;
    }
    torch::Tensor tensor = value(name).tensor();
    if (const auto parts = implementation_->joined.find(name); parts != implementation_->joined.end()) {
      const auto& [size, boxes, tensors] = parts->second;
      const auto at =
          std::find_if(boxes.begin(), boxes.end(), [&](const Box& box) { return box.offsets == item.storage_chunk_offset; });
      if (at == boxes.end())
        throw Error(ErrorCode::kMismatch, "\"" + printable(name) + "\" has no part at " + to_string(item.storage_chunk_offset));
      tensor = tensors[static_cast<std::size_t>(at - boxes.begin())];
      implementation_->check_storage(tensor);
    }
    const torch::Tensor to = planner.resolve_tensor(plan, item);
    const auto& stored = std::get<TensorStorageMetadata>(*implementation_->metadata.find(name));
    copy_elements(name, stored.properties.dtype, part_of(tensor, item.storage_offsets, item.lengths), to);
    planner.commit_tensor(plan, item, to);
  }
  return ready_future(true);
}

const Value& TorchSaveReader::value(const std::string& fqn) {
  if (!implementation_) throw Error(ErrorCode::kPrecondition, "the reader was not set up: call read_metadata first");
  const Value& found = implementation_->values.at(fqn);
  if (const std::string reason = why_unreadable(fqn); !reason.empty())
    throw Error(ErrorCode::kUnsupported, "\"" + printable(fqn) + "\": " + reason);
  for_each_tensor_in(found, [this](const torch::Tensor& tensor) { implementation_->check_storage(tensor); });
  return found;
}

std::string TorchSaveReader::why_unreadable(const std::string& fqn) const {
  const Value& value = implementation_->values.at(fqn);
  std::string reason;
  for_each_tensor_in(value, [&](const torch::Tensor& tensor) {
    const auto found = implementation_->carried.find(tensor.unsafeGetTensorImpl());
    if (found == implementation_->carried.end()) return;
    const CarriedType& type = found->second;
    const std::string name = type.dtype == DType::kUnknown ? type.unknown_dtype : to_string(type.dtype);
    if (!value.is_tensor())
      reason = "it holds, in a tuple, a tensor of torch." + name + ", which the LibTorch in use lacks";
    else if (type.dtype == DType::kUnknown)
      reason = "its type is torch." + name + ", which this version of Cairn does not know";
  });
  return reason;
}

}  // namespace cairn
