#include <cairn/state/torch_checkpointing.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/state/hugging_face.hpp>
#include <cairn/state/leaf_reader.hpp>
#include <cairn/state/read_part.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/state/torch_save.hpp>
#include <cairn/storage/format/items_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/mapped_file.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kRecordBytesMax = 1u << 30;
constexpr const char* kDTensor = "torch.distributed.tensor.DTensor";
// Follows the name of a DTensor in the name that TorchSaveReader gives to its local tensor. That is
// in the state, the fourth argument of the function that rebuilds the DTensor.
constexpr const char* kLocalTensor = ".3.1._local_tensor";

// Returns whether an opaque value is a DTensor, by the names of the function that rebuilds it and
// of its class. Neither is called.
bool is_dtensor(const Value& value) {
  const auto* const saved = value.is_opaque() ? dynamic_cast<const SavedOpaque*>(&value.opaque()) : nullptr;
  if (saved == nullptr || saved->pickle().shape() != PickleKind::kObject) return false;
  const PickleValue callee = saved->pickle().callee(), arguments = saved->pickle().arguments();
  const auto is = [](const PickleValue& part, const PickleGlobal& name) {
    return part.shape() == PickleKind::kGlobal && part.global() == name;
  };
  return arguments.size() == 4 && is(callee, {"torch._tensor", "_rebuild_from_type_v2"}) &&
         is(arguments[1], {"torch.distributed.tensor", "DTensor"});
}

// Returns a value of JSON as PyTorch's json.loads gives it. Throws kUnsupported for deep nesting,
// which the recursion could not take.
Value value_of_json(const nlohmann::ordered_json& json, int depth = 0) {
  constexpr int kDepthMax = 100;
  if (depth > kDepthMax) throw Error(ErrorCode::kUnsupported, "its values nest too deeply");
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned()) return json.get<std::uint64_t>();
  if (json.is_number()) return json.get<std::int64_t>();
  if (json.is_string()) return json.get<std::string>();
  Dict dict;
  List list;
  for (const auto& [key, element] : json.items())
    json.is_object() ? dict.insert(key, value_of_json(element, depth + 1)) : list.push_back(value_of_json(element, depth + 1));
  return json.is_object() ? Value(std::move(dict)) : Value(std::move(list));
}

// The open file of one item and rank.
class OpenItemFile {
 public:
  OpenItemFile(const std::string& directory, const ItemFile& file) {
    const std::string path = directory + "/" + file.path;
    if (file.format == ItemFormat::kTorch) {
      torch_ = std::make_unique<TorchSaveReader>(file.item);
      torch_->reset(path);
      metadata_ = torch_->read_metadata();
    } else if (file.format == ItemFormat::kSafetensors) {
      prefix_ = file.item + ".";
      safetensors_ = std::make_unique<HuggingFaceStorageReader>();
      safetensors_->reset(directory);
      Metadata stored = safetensors_->read_metadata_of({{file.path, {}}});
      safetensors_->set_up_storage_reader(stored, {});
      for (auto& [name, entry] : stored.state_dict_metadata) add(prefix_ + name, {file.item, name}, std::move(entry));
    } else {
      const MappedFile mapped(path);
      const std::string_view bytes = mapped.bytes().view();
      Value value = Blob{Bytes(bytes), BytesType::kBytes};
      if (file.format == ItemFormat::kJson) {
        const auto json = nlohmann::ordered_json::parse(bytes, nullptr, false);
        if (json.is_discarded()) throw Error(ErrorCode::kCorrupt, printable(path) + " is no JSON");
        value = value_of_json(json);
      }
      for (FlatEntry& entry : flatten(Dict{{file.item, std::move(value)}})) {
        add(entry.fqn, std::move(entry.path), BytesStorageMetadata{});
        values_.emplace(std::move(entry.fqn), std::move(entry.value));
      }
    }
  }

  const Metadata& metadata() const { return metadata_; }
  std::string why_unreadable(const std::string& fqn) const { return torch_ ? torch_->why_unreadable(fqn) : ""; }
  Value value(const std::string& fqn) {
    if (safetensors_) return read(fqn, Box::whole(std::get<TensorStorageMetadata>(*metadata_.find(fqn)).size));
    return torch_ ? torch_->value(fqn) : values_.at(fqn);
  }
  // Returns the elements of a box of a tensor, in the carrier type of its dtype.
  torch::Tensor read(const std::string& name, const Box& box) {
    if (torch_) return part_of(torch_->value(name).tensor(), box.offsets, box.sizes);
    return read_part(*safetensors_, name.substr(prefix_.size()), std::get<TensorStorageMetadata>(*metadata_.find(name)), box);
  }
  // Returns the tensor of this name in the file: a plain one, or the local one of a DTensor, whose
  // own name goes to `local_name`. Returns nullptr if there is none.
  const TensorStorageMetadata* tensor(const std::string& fqn, std::string& local_name) {
    local_name = fqn;
    const Metadata::Entry* entry = metadata_.find(fqn);
    if (entry != nullptr && torch_ && std::holds_alternative<BytesStorageMetadata>(*entry) && is_dtensor(value(fqn)))
      entry = metadata_.find(local_name += kLocalTensor);
    return entry == nullptr ? nullptr : std::get_if<TensorStorageMetadata>(entry);
  }

 private:
  void add(const std::string& fqn, Path path, Metadata::Entry entry) {
    metadata_.planner_data.emplace_back(fqn, std::move(path));
    metadata_.state_dict_metadata.emplace_back(fqn, std::move(entry));
  }

  std::string prefix_;  // of the names in `metadata_`, which a safetensors file does not have
  Metadata metadata_;
  std::unique_ptr<TorchSaveReader> torch_;
  std::unique_ptr<HuggingFaceStorageReader> safetensors_;
  std::unordered_map<std::string, Value> values_;
};

// Returns whether two ranks saved the same. Compares bits, so that equal NaNs are the same.
bool are_same(const Value& a, const Value& b) {
  // A load of an opaque value fails with its class.
  if (a.is_opaque() || b.is_opaque()) return a.is_opaque() == b.is_opaque();
  if (!a.is_tensor() || !b.is_tensor()) return a.is_tensor() == b.is_tensor() && serialize_leaf(a) == serialize_leaf(b);
  const torch::Tensor first = a.tensor().contiguous(), second = b.tensor().contiguous();
  return first.scalar_type() == second.scalar_type() && first.sizes() == second.sizes() &&
         (first.nbytes() == 0 || std::memcmp(first.data_ptr(), second.data_ptr(), first.nbytes()) == 0);
}

}  // namespace

// An open checkpoint. Opens each file once to list its keys and to check what the record says, and
// then only those from which this rank reads.
struct TorchCheckpointingReader::Implementation {
  // Throws kUnsupported for a URL that is no directory, and the errors of the record and the files.
  explicit Implementation(const std::string& url) {
    const auto path = local_path(url);
    if (!path)
      throw Error(ErrorCode::kUnsupported, "cannot read " + url + ": torch_checkpointing's files are read from directories only");
    directory = path->string();
    find_files(*open_store(url));
    std::map<std::uint32_t, std::vector<std::pair<const DeclaredTensor*, std::size_t>>> chunks_of;  // by file
    for (const DeclaredTensor& tensor : record.tensors) {
      Place& place = places[tensor.fqn];
      if (std::exchange(place.is_declared, true))
        throw Error(ErrorCode::kUnsupported, directory + " has two tensors \"" + printable(tensor.fqn) + "\"");
      place.files = tensor.files;
      TensorStorageMetadata stored = tensor.stored;
      for (std::size_t chunk = 0; chunk < tensor.files.size(); ++chunk) {
        chunks_of[tensor.files[chunk]].emplace_back(&tensor, chunk);
        stored.storage.push_back(place_in(tensor.files[chunk]));
      }
      metadata.state_dict_metadata.emplace_back(tensor.fqn, std::move(stored));
    }
    for (std::uint32_t i = 0; i < record.files.size(); ++i) {
      // A layout may also name items that were not saved.
      if (!metadata.files[i].length && chunks_of.count(i) == 0) continue;
      OpenItemFile opened = open(i);
      for (const auto& [tensor, chunk] : chunks_of[i])
        local_name(opened, i, tensor->fqn, tensor->stored.chunks[chunk].sizes, tensor->stored.properties.dtype);
      add_keys(opened, i);
    }
    metadata.version = record.version;
  }

  // The elements are somewhere in the archive that the file is.
  StorageInfo place_in(std::uint32_t file) const { return {file, 0, metadata.files[file].length.value_or(0), 0, {}}; }

  std::string name_of(std::uint32_t file) const { return printable(directory + "/" + record.files[file].path); }

  // Finds the files that the record names, and the others that have a default name.
  void find_files(Store& store) {
    std::map<std::string, std::uint64_t> sizes;
    for (const ObjectInfo& object : store.list()) sizes[object.name] = object.size_bytes;
    if (const auto found = sizes.find(kItemsRecordName); found != sizes.end()) {
      Bytes bytes(static_cast<std::size_t>(std::min(found->second, kRecordBytesMax)), '\0');
      store.read(kItemsRecordName, {{0, {bytes.data(), bytes.size()}}});
      record = decode_items_record(bytes, child_url(store.url(), kItemsRecordName));
    }
    std::set<std::string> known;
    for (const ItemFile& file : record.files) known.insert(file.path);
    int ranks = 0;
    for (const auto& [name, bytes] : sizes) {
      const auto item = item_of_file(name);
      if (!item || known.count(name) > 0) continue;
      record.files.push_back({item->first, item->second, name, ItemFormat::kTorch});
      ranks = std::max(ranks, item->second + 1);
    }
    if (record.world_size == 0) record.world_size = ranks;
    if (record.files.empty())
      throw Error(ErrorCode::kNotFound, "torch_checkpointing wrote nothing at " + store.url() + ": there is neither " +
                                            kItemsRecordName + " nor a file such as model_0.pt. Check the path");
    for (const ItemFile& file : record.files) {
      const auto size = sizes.find(file.path);
      metadata.files.push_back({file.path, size == sizes.end() ? std::nullopt : std::optional(size->second), {}, {}});
    }
  }

  OpenItemFile open(std::uint32_t file) const {
    try {
      return OpenItemFile(directory, record.files[file]);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      const std::uint64_t bytes = metadata.files[file].length.value_or(0);
      throw Error(ErrorCode::kCorrupt,
                  error.what() + (". It has " + std::to_string(bytes)) + " bytes: a save that failed leaves " +
                      "an empty or short file, such as one with direct I/O or of a DTensor that is a view of " +
                      "a larger storage");
    }
  }

  // Returns the name of a tensor in a file. Throws kCorrupt if the file has no tensor of this size
  // and type.
  std::string local_name(OpenItemFile& opened, std::uint32_t file, const std::string& fqn, const Extents& size, DType dtype) const {
    std::string name;
    const TensorStorageMetadata* const local = opened.tensor(fqn, name);
    if (local == nullptr || local->size != size || local->properties.dtype != dtype)
      throw Error(ErrorCode::kCorrupt,
                  name_of(file) + " holds " +
                      (local == nullptr ? "no tensor" : to_string(local->size) + " " + to_string(local->properties.dtype)) +
                      " for \"" + printable(fqn) + "\", where " + to_string(size) + " " + to_string(dtype) + " was expected");
    return name;
  }

  // Adds the paths of declared tensors, and the keys that the record does not declare.
  void add_keys(OpenItemFile& item, std::uint32_t file) {
    std::set<std::string> dtensors;  // their parts come after the values of the file
    const auto is_part_of_dtensor = [&](const std::string& fqn) {
      for (std::size_t dot = fqn.find('.'); dot != std::string::npos && !dtensors.empty(); dot = fqn.find('.', dot + 1))
        if (dtensors.count(fqn.substr(0, dot)) > 0) return true;
      return false;
    };
    std::unordered_map<std::string, const Path*> paths;
    for (const auto& [fqn, path] : item.metadata().planner_data) paths[fqn] = &path;
    for (const auto& [fqn, entry] : item.metadata().state_dict_metadata) {
      const auto* const bytes = std::get_if<BytesStorageMetadata>(&entry);
      const bool is_dtensor_here = bytes != nullptr && !bytes->opaque.empty() && is_dtensor(item.value(fqn));
      if (is_dtensor_here) dtensors.insert(fqn);
      if (is_part_of_dtensor(fqn)) continue;
      Place& place = places[fqn];
      if (!place.is_declared) place.files.push_back(file);
      if (std::exchange(place.has_path, true)) continue;
      metadata.planner_data.emplace_back(fqn, *paths.at(fqn));
      if (place.is_declared) continue;
      metadata.state_dict_metadata.emplace_back(fqn, is_dtensor_here ? BytesStorageMetadata{{}, kDTensor} : entry);
      if (auto* const tensor = std::get_if<TensorStorageMetadata>(&metadata.state_dict_metadata.back().second))
        tensor->storage = {place_in(file)};
    }
  }

  // Keeps files open, because a load reads several keys of one.
  OpenItemFile& opened(std::uint32_t file) {
    auto& item = items[file];
    if (!item) item = std::make_unique<OpenItemFile>(open(file));
    return *item;
  }

  // Returns on which ranks a value differs from that on the first, or "".
  const std::string& difference(const std::string& fqn) {
    const auto [known, is_new] = differences.emplace(fqn, "");
    const std::vector<std::uint32_t>& files = places.at(fqn).files;
    std::vector<int> others;
    for (std::size_t i = 1; is_new && i < files.size(); ++i)
      if (!are_same(opened(files[0]).value(fqn), opened(files[i]).value(fqn))) others.push_back(record.files[files[i]].rank);
    std::sort(others.begin(), others.end());
    if (!others.empty())
      known->second = "its value on " + name_ranks(others) + " differs from that on rank " +
                      std::to_string(record.files[files[0]].rank) + ": load it on as many ranks as saved it, " +
                      std::to_string(record.world_size);
    return known->second;
  }

  // Returns the file from which this rank takes what the record does not declare.
  std::uint32_t file_for(const std::string& fqn) {
    const std::vector<std::uint32_t>& files = places.at(fqn).files;
    for (const std::uint32_t file : files)
      if (context.world_size == record.world_size && record.files[file].rank == context.rank) return file;
    if (const std::string& why = difference(fqn); !why.empty())
      throw Error(ErrorCode::kMismatch, "\"" + printable(fqn) + "\" in " + directory + ": " + why);
    return files.front();
  }

  // The place of one key.
  struct Place {
    bool is_declared = false;
    bool has_path = false;             // `metadata` has its path
    std::vector<std::uint32_t> files;  // of a declared tensor: by chunk; of others: of the ranks that hold it
  };

  std::string directory;
  ItemsRecord record;
  Metadata metadata;
  StorageContext context;
  std::unordered_map<std::string, Place> places;
  std::map<std::uint32_t, std::unique_ptr<OpenItemFile>> items;
  std::unordered_map<std::string, std::string> differences;
};

TorchCheckpointingReader::TorchCheckpointingReader() = default;
TorchCheckpointingReader::~TorchCheckpointingReader() = default;

void TorchCheckpointingReader::reset(const std::string& checkpoint_id) {
  path_ = checkpoint_id;
  implementation_.reset();
}

Metadata TorchCheckpointingReader::read_metadata() {
  implementation_ = std::make_unique<Implementation>(path_);
  return implementation_->metadata;
}

void TorchCheckpointingReader::set_up_storage_reader(const Metadata&, const StorageContext& context) {
  if (!implementation_) throw Error(ErrorCode::kPrecondition, "the reader was not set up: call read_metadata first");
  implementation_->context = context;
}

Future<bool> TorchCheckpointingReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  Implementation& self = *implementation_;
  for (const ReadItem& item : plan.items) {
    const std::string& name = plan.names[item.storage_name];
    if (item.type == LoadItemType::kByteIO) {
      planner.load_bytes(plan, item, serialize_leaf(value(name)));
      continue;
    }
    const auto& stored = std::get<TensorStorageMetadata>(*self.metadata.find(name));
    const Implementation::Place& place = self.places.at(name);
    const std::uint32_t file = place.is_declared ? place.files.at(item.storage_chunk) : self.file_for(name);
    const Extents& size = place.is_declared ? stored.chunks[item.storage_chunk].sizes : stored.size;
    const std::string local_name = self.local_name(self.opened(file), file, name, size, stored.properties.dtype);
    const torch::Tensor from = self.opened(file).read(local_name, {item.storage_offsets, item.lengths});
    const torch::Tensor to = planner.resolve_tensor(plan, item);
    copy_elements(name, stored.properties.dtype, from, to);
    planner.commit_tensor(plan, item, to);
  }
  return ready_future(true);
}

Value TorchCheckpointingReader::value(const std::string& fqn) {
  if (!implementation_) throw Error(ErrorCode::kPrecondition, "the reader was not set up: call read_metadata first");
  const std::uint32_t file = implementation_->file_for(fqn);
  return implementation_->opened(file).value(fqn);
}

std::string TorchCheckpointingReader::why_unreadable(const std::string& fqn) const {
  Implementation& self = *implementation_;
  const Implementation::Place& place = self.places.at(fqn);
  if (const auto* const tensor = std::get_if<TensorStorageMetadata>(self.metadata.find(fqn));
      tensor && !tensor->unknown_dtype.empty())
    return "its type is torch." + tensor->unknown_dtype + ", which this version of Cairn does not know";
  if (place.is_declared) return "";
  if (const auto* const bytes = std::get_if<BytesStorageMetadata>(self.metadata.find(fqn));
      bytes != nullptr && bytes->opaque == kDTensor)
    return std::string("it is a DTensor, and ") + kItemsRecordName +
           " does not tell its place: its item was not declared to reshard, " + "or the save failed before the record was written";
  const std::string& why = self.difference(fqn);
  return why.empty() ? self.opened(place.files.front()).why_unreadable(fqn) : why;
}

}  // namespace cairn
