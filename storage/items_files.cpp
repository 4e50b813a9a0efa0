// Checkpoints of torch_checkpointing.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/formats/pickler.hpp>
#include <cairn/formats/tensor_pickle.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/storage/format/items_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/safetensors_files.hpp>
#include <cairn/storage/saved_files.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {
namespace {

constexpr std::uint64_t kRecordBytesMax = 1u << 30;
constexpr const char* kDTensor = "torch.distributed.tensor.DTensor";
// Follows the name of a DTensor in the name that open_torch_save gives to its local tensor. That is
// in the state, the fourth argument of the function that rebuilds the DTensor.
constexpr const char* kLocalTensor = ".3.1._local_tensor";

// Returns whether an opaque value is a DTensor, by the names of the function that rebuilds it and
// of its class. Neither is called.
bool is_dtensor(const SavedValue& value) {
  const PickleValue& made = value.value;
  if (!value.is_opaque() || made.shape() != PickleKind::kObject) return false;
  const auto is = [](const PickleValue& part, const PickleGlobal& name) {
    return part.shape() == PickleKind::kGlobal && part.global() == name;
  };
  const PickleValue arguments = made.arguments();
  return arguments.size() == 4 && is(made.callee(), {"torch._tensor", "_rebuild_from_type_v2"}) &&
         is(arguments[1], {"torch.distributed.tensor", "DTensor"});
}

// Pickles a value of JSON as PyTorch's json.loads gives it. Throws kUnsupported for deep nesting,
// which the recursion could not take.
void put_json(Pickler& out, const nlohmann::ordered_json& json, int depth = 0) {
  constexpr int kDepthMax = 100;
  if (depth > kDepthMax) throw Error(ErrorCode::kUnsupported, "its values nest too deeply");
  if (json.is_null()) return out.none();
  if (json.is_boolean()) return out.boolean(json.get<bool>());
  if (json.is_number_float()) return out.real(json.get<double>());
  if (json.is_number()) {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (json.is_number_unsigned() && json.get<std::uint64_t>() > kMax)
      throw Error(ErrorCode::kUnsupported, "its value " + json.dump() + " does not fit into 64 bits with a sign");
    return out.integer(json.get<std::int64_t>());
  }
  if (json.is_string()) return void(out.text(json.get_ref<const std::string&>()));
  json.is_object() ? out.empty_dict() : out.empty_list();
  if (json.empty()) return;
  out.mark();
  for (const auto& [key, element] : json.items()) {
    if (json.is_object()) out.text(key);
    put_json(out, element, depth + 1);
  }
  json.is_object() ? out.set_items() : out.appends();
}

// A file of JSON, or of bytes. The content is pickled here as torch.save would pickle it, so that
// the values of all formats are flattened and saved in one way.
class PlainItemFile final : public SavedFiles {
 public:
  PlainItemFile(const std::string& path, const ItemFile& file) {
    const MappedFile mapped(path);
    Pickler out(4);
    out.empty_dict();
    out.mark();
    out.text(file.item);
    if (file.format == ItemFormat::kJson) {
      const auto json = nlohmann::ordered_json::parse(mapped.bytes().view(), nullptr, false);
      if (json.is_discarded()) throw Error(ErrorCode::kCorrupt, printable(path) + " is no JSON");
      put_json(out, json);
    } else {
      out.bytes(mapped.bytes());
    }
    out.set_items();
    for (SavedEntry& entry : saved_entries(std::move(out).finish(), printable(path))) {
      metadata_.planner_data.emplace_back(entry.fqn, std::move(entry.path));
      metadata_.state_dict_metadata.emplace_back(entry.fqn, BytesStorageMetadata{});
      values_.emplace(std::move(entry.fqn), std::move(entry.value));
    }
  }

  SavedValue value(const std::string& fqn) override { return values_.at(fqn); }
  Bytes bytes(const std::string& fqn) override {
    return write_torch_archive(pickle_leaf(values_.at(fqn), BlobsAs::kOwnType).pickle, {});
  }

 private:
  std::unordered_map<std::string, SavedValue> values_;
};

// A file of safetensors. Its tensors have no strides, and are read where they are in the file.
class SafetensorsItemFile final : public SavedFiles {
 public:
  SafetensorsItemFile(const std::string& directory, const ItemFile& file) : mapped_(directory + "/" + file.path) {
    Metadata stored = safetensors_metadata(*open_store(directory), {{file.path, {}}});
    for (auto& [name, entry] : stored.state_dict_metadata) {
      const std::string fqn = file.item + "." + name;
      metadata_.planner_data.emplace_back(fqn, Path{file.item, name});
      metadata_.state_dict_metadata.emplace_back(fqn, std::move(entry));
    }
  }

  SavedElements elements(const std::string& fqn, std::size_t chunk) override {
    const auto& tensor = std::get<TensorStorageMetadata>(*metadata_.find(fqn));
    const StorageInfo& place = tensor.storage.at(chunk);
    if (place.payload_offset + place.length > mapped_.size())
      throw Error(ErrorCode::kCorrupt, "\"" + printable(fqn) + "\" is cut short");
    const Extents& sizes = tensor.chunks[chunk].sizes;
    return {element_size(tensor.properties.dtype), mapped_.begin() + place.payload_offset, sizes, contiguous_strides(sizes), {}};
  }

 private:
  const MappedFile mapped_;
};

// Opens a file that a rank wrote for an item, by the format that the record or its name says.
std::unique_ptr<SavedFiles> open_item(const std::string& directory, const ItemFile& file) {
  const std::string path = directory + "/" + file.path;
  if (file.format == ItemFormat::kTorch) return open_torch_save(path, file.item);
  if (file.format == ItemFormat::kSafetensors) return std::make_unique<SafetensorsItemFile>(directory, file);
  return std::make_unique<PlainItemFile>(path, file);
}

// Returns whether two ranks saved the same. Compares bits, so that equal NaNs are the same.
bool are_same(SavedFiles& a, SavedFiles& b, const std::string& fqn) {
  const Metadata::Entry &entry_a = *a.metadata().find(fqn), &entry_b = *b.metadata().find(fqn);
  const auto* const first = std::get_if<TensorStorageMetadata>(&entry_a);
  const auto* const second = std::get_if<TensorStorageMetadata>(&entry_b);
  if (first != nullptr && second != nullptr)
    return first->properties.dtype == second->properties.dtype && first->size == second->size &&
           a.elements(fqn, 0).dense() == b.elements(fqn, 0).dense();
  if (first != nullptr || second != nullptr) return false;
  const bool is_opaque = a.value(fqn).is_opaque();
  // A load of an opaque value fails with its class.
  return is_opaque == b.value(fqn).is_opaque() && (is_opaque || a.bytes(fqn) == b.bytes(fqn));
}

// An open checkpoint. Opens each file once to list its keys and to check what the record says, and
// then only those from which this rank reads.
class TorchCheckpointingFiles final : public SavedFiles {
 public:
  // Throws kUnsupported for a URL that is no directory, and the errors of the record and the files.
  explicit TorchCheckpointingFiles(const std::string& url) {
    const auto path = local_path(url);
    if (!path)
      throw Error(ErrorCode::kUnsupported, "cannot read " + url + ": torch_checkpointing's files are read from directories only");
    directory_ = path->string();
    find_files(*open_store(url));
    std::map<std::uint32_t, std::vector<std::pair<const DeclaredTensor*, std::size_t>>> chunks_of;  // by file
    for (const DeclaredTensor& tensor : record_.tensors) {
      Place& place = places_[tensor.fqn];
      if (std::exchange(place.is_declared, true))
        throw Error(ErrorCode::kUnsupported, directory_ + " has two tensors \"" + printable(tensor.fqn) + "\"");
      place.files = tensor.files;
      TensorStorageMetadata stored = tensor.stored;
      for (std::size_t chunk = 0; chunk < tensor.files.size(); ++chunk) {
        chunks_of[tensor.files[chunk]].emplace_back(&tensor, chunk);
        stored.storage.push_back(place_in(tensor.files[chunk]));
      }
      metadata_.state_dict_metadata.emplace_back(tensor.fqn, std::move(stored));
    }
    for (std::uint32_t i = 0; i < record_.files.size(); ++i) {
      // A layout may also name items that were not saved.
      if (!metadata_.files[i].length && chunks_of.count(i) == 0) continue;
      const std::unique_ptr<SavedFiles> opened = open(i);
      for (const auto& [tensor, chunk] : chunks_of[i])
        local_name(*opened, i, tensor->fqn, tensor->stored.chunks[chunk].sizes, tensor->stored.properties.dtype);
      add_keys(*opened, i);
    }
    metadata_.version = record_.version;
  }

  void set_context(const StorageContext& given) override { context_ = given; }

  std::string why_unreadable(const std::string& fqn) override {
    const Place& place = places_.at(fqn);
    if (const auto* const tensor = std::get_if<TensorStorageMetadata>(metadata_.find(fqn));
        tensor && !tensor->unknown_dtype.empty())
      return "its type is torch." + tensor->unknown_dtype + ", which this version of Cairn does not know";
    if (place.is_declared) return "";
    if (const auto* const bytes = std::get_if<BytesStorageMetadata>(metadata_.find(fqn));
        bytes != nullptr && bytes->opaque == kDTensor)
      return std::string("it is a DTensor, and ") + kItemsRecordName +
             " does not tell its place: its item was not declared to reshard, or the save failed before the record was written";
    const std::string& why = difference(fqn);
    return why.empty() ? opened(place.files.front()).why_unreadable(fqn) : why;
  }
  SavedValue value(const std::string& fqn) override { return opened(file_for(fqn)).value(fqn); }
  Bytes bytes(const std::string& fqn) override { return opened(file_for(fqn)).bytes(fqn); }
  SavedElements elements(const std::string& fqn, std::size_t chunk) override {
    const auto& stored = std::get<TensorStorageMetadata>(*metadata_.find(fqn));
    const Place& place = places_.at(fqn);
    const std::uint32_t file = place.is_declared ? place.files.at(chunk) : file_for(fqn);
    const Extents& size = place.is_declared ? stored.chunks[chunk].sizes : stored.size;
    return opened(file).elements(local_name(opened(file), file, fqn, size, stored.properties.dtype), 0);
  }

 private:
  // The elements are somewhere in the archive that the file is.
  StorageInfo place_in(std::uint32_t file) const { return {file, 0, metadata_.files[file].length.value_or(0), 0, {}}; }

  std::string name_of(std::uint32_t file) const { return printable(directory_ + "/" + record_.files[file].path); }

  // Finds the files that the record names, and the others that have a default name.
  void find_files(Store& store) {
    std::map<std::string, std::uint64_t> sizes;
    for (const ObjectInfo& object : store.list()) sizes[object.name] = object.size_bytes;
    if (const auto found = sizes.find(kItemsRecordName); found != sizes.end()) {
      Bytes bytes(static_cast<std::size_t>(std::min(found->second, kRecordBytesMax)), '\0');
      store.read(kItemsRecordName, {{0, {bytes.data(), bytes.size()}}});
      record_ = decode_items_record(bytes, child_url(store.url(), kItemsRecordName));
    }
    std::set<std::string> known;
    for (const ItemFile& file : record_.files) known.insert(file.path);
    int ranks = 0;
    for (const auto& [name, bytes] : sizes) {
      const auto item = item_of_file(name);
      if (!item || known.count(name) > 0) continue;
      record_.files.push_back({item->first, item->second, name, ItemFormat::kTorch});
      ranks = std::max(ranks, item->second + 1);
    }
    if (record_.world_size == 0) record_.world_size = ranks;
    if (record_.files.empty())
      throw Error(ErrorCode::kNotFound, "torch_checkpointing wrote nothing at " + store.url() + ": there is neither " +
                                            kItemsRecordName + " nor a file such as model_0.pt. Check the path");
    for (const ItemFile& file : record_.files) {
      const auto size = sizes.find(file.path);
      metadata_.files.push_back({file.path, size == sizes.end() ? std::nullopt : std::optional(size->second), {}, {}});
    }
  }

  // Opens a file of the record. An error names the file, and says that a save may have failed.
  std::unique_ptr<SavedFiles> open(std::uint32_t file) const {
    try {
      return open_item(directory_, record_.files[file]);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      const std::uint64_t bytes = metadata_.files[file].length.value_or(0);
      throw Error(ErrorCode::kCorrupt,
                  error.what() + (". It has " + std::to_string(bytes)) + " bytes: a save that failed leaves " +
                      "an empty or short file, such as one with direct I/O or of a DTensor that is a view of " +
                      "a larger storage");
    }
  }

  // Returns the name of a tensor in a file. Throws kCorrupt if the file has no tensor of this size
  // and type.
  std::string local_name(SavedFiles& opened, std::uint32_t file, const std::string& fqn, const Extents& size, DType dtype) const {
    std::string name = fqn;
    const Metadata::Entry* entry = opened.metadata().find(fqn);
    if (entry != nullptr && std::holds_alternative<BytesStorageMetadata>(*entry) && is_dtensor(opened.value(fqn)))
      entry = opened.metadata().find(name += kLocalTensor);
    const auto* const local = entry == nullptr ? nullptr : std::get_if<TensorStorageMetadata>(entry);
    if (local == nullptr || local->size != size || local->properties.dtype != dtype)
      throw Error(ErrorCode::kCorrupt,
                  name_of(file) + " holds " +
                      (local == nullptr ? "no tensor" : to_string(local->size) + " " + to_string(local->properties.dtype)) +
                      " for \"" + printable(fqn) + "\", where " + to_string(size) + " " + to_string(dtype) + " was expected");
    return name;
  }

  // Adds the paths of declared tensors, and the keys that the record does not declare.
  void add_keys(SavedFiles& item, std::uint32_t file) {
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
      Place& place = places_[fqn];
      if (!place.is_declared) place.files.push_back(file);
      if (std::exchange(place.has_path, true)) continue;
      metadata_.planner_data.emplace_back(fqn, *paths.at(fqn));
      if (place.is_declared) continue;
      metadata_.state_dict_metadata.emplace_back(fqn, is_dtensor_here ? BytesStorageMetadata{{}, kDTensor} : entry);
      if (auto* const tensor = std::get_if<TensorStorageMetadata>(&metadata_.state_dict_metadata.back().second))
        tensor->storage = {place_in(file)};
    }
  }

  // Keeps files open, because a load reads several keys of one.
  SavedFiles& opened(std::uint32_t file) {
    auto& item = items_[file];
    if (!item) item = open(file);
    return *item;
  }

  // Returns on which ranks a value differs from that on the first, or "".
  const std::string& difference(const std::string& fqn) {
    const auto [known, is_new] = differences_.emplace(fqn, "");
    const std::vector<std::uint32_t>& files = places_.at(fqn).files;
    std::vector<int> others;
    for (std::size_t i = 1; is_new && i < files.size(); ++i)
      if (!are_same(opened(files[0]), opened(files[i]), fqn)) others.push_back(record_.files[files[i]].rank);
    std::sort(others.begin(), others.end());
    if (!others.empty())
      known->second = "its value on " + name_ranks(others) + " differs from that on rank " +
                      std::to_string(record_.files[files[0]].rank) + ": load it on as many ranks as saved it, " +
                      std::to_string(record_.world_size);
    return known->second;
  }

  // Returns the file from which this rank takes what the record does not declare.
  std::uint32_t file_for(const std::string& fqn) {
    const std::vector<std::uint32_t>& files = places_.at(fqn).files;
    for (const std::uint32_t file : files)
      if (context_.world_size == record_.world_size && record_.files[file].rank == context_.rank) return file;
    if (const std::string& why = difference(fqn); !why.empty())
      throw Error(ErrorCode::kMismatch, "\"" + printable(fqn) + "\" in " + directory_ + ": " + why);
    return files.front();
  }

  // The place of one key.
  struct Place {
    bool is_declared = false;
    bool has_path = false;             // `metadata` has its path
    std::vector<std::uint32_t> files;  // of a declared tensor: by chunk; of others: of the ranks that hold it
  };

  std::string directory_;
  ItemsRecord record_;
  StorageContext context_;
  std::unordered_map<std::string, Place> places_;
  std::map<std::uint32_t, std::unique_ptr<SavedFiles>> items_;
  std::unordered_map<std::string, std::string> differences_;
};

}  // namespace

std::unique_ptr<SavedFiles> open_torch_checkpointing(const std::string& url) {
  return std::make_unique<TorchCheckpointingFiles>(url);
}

}  // namespace cairn
