#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/planning/stored_items.hpp>

namespace cairn {
namespace {

// Modules that define DCP's classes, newest first.
constexpr std::string_view kMetadataModules[] = {"torch.distributed.checkpoint.metadata",
                                                 "torch.distributed._shard.checkpoint.metadata"};
constexpr std::string_view kFilesystemModules[] = {"torch.distributed.checkpoint.filesystem",
                                                   "torch.distributed._shard.checkpoint.filesystem"};
// Module of TensorProperties before PyTorch 2.3.
constexpr std::string_view kShardedTensorModule = "torch.distributed._shard.sharded_tensor.metadata";
constexpr std::size_t kFieldsMax = 64;  // per object; DCP's classes have at most six
constexpr std::string_view kPathModules[] = {"pathlib", "pathlib._local"};
constexpr std::string_view kPathClasses[] = {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"};

const std::vector<PickleGlobal>& metadata_globals() {
  static const auto globals = [] {
    std::vector<PickleGlobal> result;
    for (const auto module : kMetadataModules)
      for (const auto name : {"Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
                              "TensorProperties", "_MEM_FORMAT_ENCODING", "MetadataIndex", "StorageMeta"})
        result.push_back({module, name});
    for (const auto module : kFilesystemModules) result.push_back({module, "_StorageInfo"});
    result.push_back({kShardedTensorModule, "TensorProperties"});
    result.push_back({kShardedTensorModule, "MEM_FORMAT_ENCODING"});
    for (const auto module : kPathModules)
      for (const auto name : kPathClasses) result.push_back({module, name});
    result.push_back({"torch.serialization", "_get_layout"});
    result.push_back({"collections", "OrderedDict"});
    result.push_back(
        // Python 3.11.0 pickles enumeration members this way. The name is only compared, never
        // called.
        {"builtins", "getattr"});
    result.insert(result.end(), dtype_globals().begin(), dtype_globals().end());
    return result;
  }();
  return globals;
}

std::string in_quotes(std::string_view name) { return "\"" + printable(name) + "\""; }

bool is_dcp_object(const PickleValue& value, std::string_view name) {
  for (const auto module : kMetadataModules)
    if (value.is_object_of(module, name)) return true;
  for (const auto module : kFilesystemModules)
    if (value.is_object_of(module, name)) return true;
  return false;
}

// Returns the fields of an instance of one of DCP's data classes.
PickleValue fields_of(const PickleValue& value, std::string_view class_name) {
  if (!is_dcp_object(value, class_name))
    corrupt(value, "expected " + std::string(class_name) + ", found " +
                       (value.is(PickleKind::kObject) ? to_string(value.callee().as_global()) : to_string(value.kind())));
  const auto state = value.state();
  if (!state) corrupt(value, std::string(class_name) + " without fields");
  // Fields are found by linear search, and one dict may be the state of a million objects.
  if (state->size() > kFieldsMax) corrupt(value, std::string(class_name) + " with " + std::to_string(state->size()) + " fields");
  return *state;
}

// Returns the fields of the root: of a `Metadata`, or of any other class that has its fields, such
// as a class derived from it. Other fields are ignored.
PickleValue fields_of_root(const PickleValue& root) {
  if (root.shape() == PickleKind::kObject) {
    auto state = root.state();
    // `__dict__`, and the values of `__slots__`.
    if (state && state->is(PickleKind::kTuple) && state->size() == 2)
      state = (*state)[0].is(PickleKind::kDict) ? (*state)[0] : (*state)[1];
    if (state && state->is(PickleKind::kDict) && state->size() <= kFieldsMax && state->find("state_dict_metadata")) return *state;
  }
  return fields_of(root, "Metadata");
}

// Returns a field; nothing if it is None or, as in older versions, absent.
std::optional<PickleValue> optional_field(const PickleValue& fields, std::string_view name) {
  auto found = fields.find(name);
  if (found && found->is_none()) found.reset();
  return found;
}

PickleValue dict_of(const PickleValue& value) { return value.is_object_of("collections", "OrderedDict") ? value.items() : value; }

std::uint64_t count_of(const PickleValue& value) {
  const auto count = value.as_int();
  if (count < 0) corrupt(value, "a negative offset or length: " + std::to_string(count));
  return static_cast<std::uint64_t>(count);
}

// Python pickles a member of an enumeration as a call of its class with the value. Python 3.11.0
// pickles it as an attribute of the class.
MemoryFormat memory_format_of(const PickleValue& value) {
  const auto is_encoding = [](const PickleValue& global) {
    return global.is_global(kMetadataModules[0], "_MEM_FORMAT_ENCODING") ||
           global.is_global(kMetadataModules[1], "_MEM_FORMAT_ENCODING") ||
           global.is_global(kShardedTensorModule, "MEM_FORMAT_ENCODING");
  };
  const auto arguments = value.arguments();
  if (is_encoding(value.callee())) {
    const auto number = arguments[0].as_int();
    if (number < 0 || number > 2) corrupt(value, "memory format " + std::to_string(number) + " does not exist");
    return static_cast<MemoryFormat>(number);
  }
  if (value.is_object_of("builtins", "getattr") && is_encoding(arguments[0])) {
    const auto name = arguments[1].as_text();
    if (name == "TORCH_CONTIGUOUS_FORMAT") return MemoryFormat::kContiguous;
    if (name == "TORCH_CHANNELS_LAST") return MemoryFormat::kChannelsLast;
    if (name == "TORCH_PRESERVE_FORMAT") return MemoryFormat::kPreserve;
  }
  corrupt(value, "expected a memory format");
}

// DCP's class has its own __getstate__, which returns a tuple of the fields.
TensorProperties properties_of(const PickleValue& value) {
  if (!is_dcp_object(value, "TensorProperties") && !value.is_object_of(kShardedTensorModule, "TensorProperties"))
    corrupt(value, "expected TensorProperties");
  const auto state = value.state();
  if (!state) corrupt(value, "TensorProperties without fields");
  TensorProperties result;
  result.dtype = dtype_of((*state)[0]);
  const auto layout = (*state)[1];
  if (!layout.is_object_of("torch.serialization", "_get_layout")) corrupt(layout, "expected a layout");
  if (const auto name = layout.arguments()[0].as_text(); name != "torch.strided")
    unsupported(layout, "a tensor of layout " + printable(name) + "; only strided ones are supported");
  result.requires_grad = (*state)[2].as_bool();
  result.memory_format = memory_format_of((*state)[3]);
  result.pin_memory = (*state)[4].as_bool();
  return result;
}

// Returns a text, or the text of a pathlib path, which is pickled as a tuple of its parts.
std::string path_text(const PickleValue& value) {
  if (value.is(PickleKind::kText)) return std::string(value.as_text());
  const auto global = value.callee().as_global();
  if (global.module != kPathModules[0] && global.module != kPathModules[1]) corrupt(value, "expected a path");
  const bool is_windows = global.name.find("Windows") != std::string_view::npos;
  const auto parts = value.arguments();
  std::string result;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!result.empty() && result.back() != '/' && result.back() != '\\') result += is_windows ? '\\' : '/';
    result += parts[i].as_text();
  }
  return result;
}

// Bounds memory. A pickle may refer to one text or list from a million places, and each place gets
// a copy here. The budget is proportional to the size of the pickle: far above what a real
// checkpoint needs, far below what would exhaust memory.
class Budget {
 public:
  explicit Budget(const PickleTree& tree) : left_(kPerNode * tree.node_count()) {}

  void spend(const PickleValue& on, std::uint64_t amount) {
    if (amount > left_) unsupported(on, "values that appear in many places unfold to more than a checkpoint can mean");
    left_ -= amount;
  }

  std::string text(const PickleValue& value) { return copy(value, value.as_text()); }

  std::string copy(const PickleValue& on, std::string_view text) {
    constexpr std::uint64_t kBytesPerUnit = 8;
    spend(on, 1 + text.size() / kBytesPerUnit);
    return std::string(text);
  }

  Extents extents(const PickleValue& value) {
    auto result = extents_of(value);
    spend(value, 1 + result.size());
    return result;
  }

 private:
  static constexpr std::uint64_t kPerNode = 64;
  std::uint64_t left_;
};

class MetadataReader {
 public:
  explicit MetadataReader(const PickleTree& tree) : budget_(tree) {}

  // Most fields may be absent: versions of PyTorch since 1.13 have added several.
  Metadata run(const PickleValue& root) {
    const auto fields = fields_of_root(root);
    const auto entries = dict_of(fields.at("state_dict_metadata"));
    // Locations first: entries look theirs up.
    if (const auto storage = optional_field(fields, "storage_data")) collect_locations(dict_of(*storage));
    for (std::size_t i = 0; i < entries.size(); ++i) add_entry(entries.key(i), entries.mapped(i));
    if (const auto planner = optional_field(fields, "planner_data")) add_paths(dict_of(*planner));
    if (const auto meta = optional_field(fields, "storage_meta")) {
      const auto meta_fields = fields_of(*meta, "StorageMeta");
      if (const auto id = optional_field(meta_fields, "checkpoint_id")) metadata_.checkpoint_id = path_text(*id);
      if (const auto id = optional_field(meta_fields, "save_id")) metadata_.save_id = std::string(id->as_text());
    }
    if (const auto version = optional_field(fields, "version")) metadata_.version = std::string(version->as_text());
    metadata_.reindex();
    return std::move(metadata_);
  }

 private:
  // Locations of one name's chunks, by chunk offset. Bytes objects, and tensors of old versions,
  // have no offset.
  struct Locations {
    std::map<Extents, StorageInfo> by_offset;
    std::optional<StorageInfo> whole;
  };

  std::uint32_t file_of(const PickleValue& value) {
    // A file name appears once per item, and thousands of items share a file.
    const auto [known, is_new] = files_.try_emplace(budget_.text(value), static_cast<std::uint32_t>(metadata_.files.size()));
    if (is_new) {
      check_file_name(value);
      metadata_.files.push_back({known->first, {}, {}, {}});
    }
    return known->second;
  }

  void collect_locations(const PickleValue& storage) {
    for (std::size_t i = 0; i < storage.size(); ++i) {
      const auto index = fields_of(storage.key(i), "MetadataIndex");
      const auto place = fields_of(storage.mapped(i), "_StorageInfo");
      StorageInfo info;
      info.file = file_of(place.at("relative_path"));
      info.offset = count_of(place.at("offset"));
      info.length = count_of(place.at("length"));
      if (const auto transforms = optional_field(place, "transform_descriptors"))
        for (std::size_t k = 0; k < transforms->size(); ++k) info.transforms.push_back(budget_.text((*transforms)[k]));
      auto& locations = locations_[budget_.text(index.at("fqn"))];
      if (const auto offset = optional_field(index, "offset")) {
        locations.by_offset.insert_or_assign(budget_.extents(*offset), std::move(info));
      } else {
        locations.whole = std::move(info);
      }
    }
  }

  // Throws unless the name stays within the checkpoint.
  static void check_file_name(const PickleValue& value) {
    const auto name = value.as_text();
    std::string_view rest = name;
    bool is_sound = !name.empty() && name.find('\0') == std::string_view::npos;
    while (is_sound) {
      const auto slash = rest.find('/');
      const auto part = rest.substr(0, slash);
      is_sound = !part.empty() && part != "." && part != "..";
      if (slash == std::string_view::npos) break;
      rest.remove_prefix(slash + 1);
    }
    if (!is_sound) corrupt(value, in_quotes(name) + " is no file name within the checkpoint");
  }

  void add_entry(const PickleValue& key, const PickleValue& value) {
    const auto fqn = budget_.text(key);
    if (!entries_.insert(fqn).second) corrupt(key, in_quotes(fqn) + " is there twice");
    const auto found = locations_.find(fqn);
    const auto* locations = found == locations_.end() ? nullptr : &found->second;
    if (is_dcp_object(value, "BytesStorageMetadata")) {
      BytesStorageMetadata bytes;
      if (locations != nullptr) bytes.storage = locations->whole;
      metadata_.state_dict_metadata.emplace_back(fqn, std::move(bytes));
      return;
    }
    const auto fields = fields_of(value, "TensorStorageMetadata");
    if (!fields.find("properties") || !fields.find("chunks"))
      unsupported(value, "the metadata of before PyTorch 1.13; load and save the checkpoint again with a newer PyTorch");
    TensorStorageMetadata tensor;
    const auto properties = fields.at("properties");
    tensor.properties = properties_of(properties);
    if (tensor.properties.dtype == DType::kUnknown)
      tensor.unknown_dtype = budget_.copy(properties, (*properties.state())[0].as_global().name);
    tensor.size = budget_.extents(fields.at("size"));
    // Throws if no tensor can have this size.
    volume(tensor.size);
    const auto chunks = fields.at("chunks");
    for (std::size_t i = 0; i < chunks.size(); ++i) add_chunk(chunks[i], fqn, locations, chunks.size(), tensor);
    metadata_.state_dict_metadata.emplace_back(fqn, std::move(tensor));
  }

  void add_chunk(const PickleValue& value, std::string_view fqn, const Locations* locations, std::size_t chunk_count,
                 TensorStorageMetadata& tensor) {
    const auto fields = fields_of(value, "ChunkStorageMetadata");
    Box box{budget_.extents(fields.at("offsets")), budget_.extents(fields.at("sizes"))};
    // The location is recorded under the offset as written, before the correction below.
    const auto stored_offset = box.offsets;
    const bool dims_agree = box.offsets.size() == tensor.size.size() && box.sizes.size() == tensor.size.size();
    // Some versions place empty chunks beyond the tensor's end.
    if (dims_agree && box.empty())
      for (std::size_t dim = 0; dim < tensor.size.size(); ++dim)
        box.offsets[dim] = std::min(box.offsets[dim], std::max<std::int64_t>(0, tensor.size[dim] - box.sizes[dim]));
    if (!dims_agree || !fits(box, tensor.size))
      corrupt(value,
              in_quotes(fqn) + ": a chunk " + to_string(box) + " does not fit in a tensor of size " + to_string(tensor.size));
    tensor.chunks.push_back(std::move(box));
    if (locations == nullptr) return;  // the writer recorded no locations

    const auto found = locations->by_offset.find(stored_offset);
    // PyTorch's index has the offset of a chunk; in old versions, tensors with one chunk have none.
    if (found != locations->by_offset.end()) {
      tensor.storage.push_back(found->second);
    } else if (locations->whole && chunk_count == 1) {
      tensor.storage.push_back(*locations->whole);
    } else if (tensor.chunks.back().empty()) {
      tensor.storage.emplace_back();  // an empty chunk needs no location
    } else {
      corrupt(value, in_quotes(fqn) + ": no location is recorded for its chunk " + to_string(tensor.chunks.back()));
    }
  }

  // The paths are those of DCP's default planner. Another planner may put anything there.
  void add_paths(const PickleValue& planner) {
    if (planner.is(PickleKind::kOpaque)) unsupported(planner, planner.why_opaque());
    if (!planner.is(PickleKind::kDict)) unsupported(planner, "the planner_data of a user-defined planner");
    for (std::size_t i = 0; i < planner.size(); ++i) {
      const auto steps = planner.mapped(i);
      Path path;
      for (std::size_t k = 0; k < steps.size(); ++k) {
        if (steps[k].is(PickleKind::kInt)) {
          budget_.spend(steps[k], 1);
          path.emplace_back(steps[k].as_int());
        } else {
          path.emplace_back(budget_.text(steps[k]));
        }
      }
      if (path.empty()) corrupt(steps, "an empty path");
      metadata_.planner_data.emplace_back(budget_.text(planner.key(i)), std::move(path));
    }
  }

  Metadata metadata_;
  std::unordered_map<std::string, std::uint32_t> files_;
  std::unordered_map<std::string, Locations> locations_;
  std::unordered_set<std::string> entries_;
  Budget budget_;
};

// Throws if two items share bytes. Then a file name or an offset is damaged, and a load would read
// another valid item instead. Exception: a writer may record one stored item twice, under two names
// or as one chunk that two ranks held, but never as two chunks of one tensor.
void check_places(const Metadata& metadata, const std::string& what) {
  struct Place {
    std::uint32_t file;
    std::uint64_t begin;
    std::uint64_t end;
    const std::string* fqn;
    const Box* chunk;  // nullptr: a bytes object
  };
  std::vector<Place> places;
  for (const auto& named : metadata.state_dict_metadata)
    visit_stored(named.second, [&](const StorageInfo& info, const TensorStorageMetadata*, const Box* chunk) {
      if (info.length > 0 && !(chunk && chunk->empty()))
        places.push_back({info.file, info.offset, info.offset + info.length, &named.first, chunk});
    });
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.file, a.begin, a.end, *a.fqn) < std::tie(b.file, b.begin, b.end, *b.fqn);
  });
  const Place* last = nullptr;  // among the places so far, the one with the largest end
  for (const Place& place : places) {
    if (last != nullptr && last->file == place.file && place.begin < last->end) {
      const bool is_one_place = place.begin == last->begin && place.end == last->end;
      const bool is_one_chunk = *place.fqn == *last->fqn && place.chunk && last->chunk && *place.chunk == *last->chunk;
      if (!is_one_place || (*place.fqn == *last->fqn && !is_one_chunk))
        throw Error(ErrorCode::kCorrupt, what + ": it places " + in_quotes(*last->fqn) + " and " + in_quotes(*place.fqn) +
                                             " at the same bytes, from " + std::to_string(place.begin) + " on, of " +
                                             in_quotes(metadata.files[place.file].name) + ": it is damaged");
    }
    if (last == nullptr || last->file != place.file || place.end >= last->end) last = &place;
  }
}

}  // namespace

TorchMetadata unpickle_torch_metadata(ByteSpan pickle, const std::string& what) {
  const auto tree = unpickle(pickle, what, metadata_globals(), kRecordPickleLimits, OpaqueValues::kKept);
  TorchMetadata result;
  try {
    result.metadata = MetadataReader(tree).run(tree.root());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kCorrupt, what + ": " + error.what());  // sizes that no tensor can have
  }
  check_places(result.metadata, what);
  result.consumed_bytes = tree.consumed_bytes();
  return result;
}

}  // namespace cairn
