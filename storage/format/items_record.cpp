#include <cairn/storage/format/items_record.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/unpickler.hpp>
#include <cairn/planning/device_mesh.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

using FileIndex = std::map<std::pair<std::string, int>, std::uint32_t>;  // by item and rank

constexpr std::int64_t kWorldSizeMax = 1 << 20;  // bounds the table of files

// Returns the file that torch_checkpointing writes without a layout.
ItemFile default_file(const std::string& item, int rank) {
  return {item, rank, item + "_" + std::to_string(rank) + ".pt", ItemFormat::kTorch};
}

// Throws kCorrupt for a rank that the world does not have.
int rank_of(const PickleValue& value, int world_size) {
  const std::int64_t rank = value.as_int();
  if (rank < 0 || rank >= world_size) corrupt(value, "rank " + std::to_string(rank) + " of " + std::to_string(world_size));
  return static_cast<int>(rank);
}

// Parses a path, JSON in a text such as ["state",0,"exp_avg"], to the elements of a flattened name.
std::vector<std::string> path_of(const PickleValue& text) {
  const auto json = nlohmann::json::parse(text.as_text(), nullptr, false);
  if (!json.is_array()) corrupt(text, "a path that is no list: " + printable(text.as_text()));
  std::vector<std::string> path;
  for (const auto& element : json) path.push_back(element.is_string() ? element.get<std::string>() : element.dump());
  return path;
}

// Returns the mesh of a DTensor. Throws kInvalidArgument if its shape does not fit its ranks.
DeviceMesh mesh_of(const PickleValue& spec, int world_size) {
  std::vector<int> ranks;
  const PickleValue data = spec.at("mesh_data");
  for (std::size_t i = 0; i < data.size(); ++i) ranks.push_back(rank_of(data[i], world_size));
  return DeviceMesh(extents_of(spec.at("mesh_shape")).to_vector(), std::move(ranks));
}

// Returns the placements of a DTensor, one for each axis of its mesh.
std::vector<Placement> placements_of(const PickleValue& list) {
  std::vector<Placement> placements;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string_view type = list[i].at("type").as_text();
    if (type == "Shard")
      placements.emplace_back(Shard{list[i].at("dim").as_int()});
    else if (type == "Replicate")
      placements.emplace_back(Replicate{});
    else
      unsupported(list[i], "the placement " + printable(type) + ", which Cairn does not read: only Shard and Replicate");
  }
  return placements;
}

// Reads the size and type of a tensor from a group of ranks.
TensorStorageMetadata tensor_of(const PickleValue& group) {
  const PickleValue sharding = group.at("sharding_metadata");
  if (const std::string_view type = sharding.at("type").as_text(); type != "DTensorShardingMetadata")
    unsupported(sharding, "sharding of the kind " + printable(type) + ", which Cairn does not read: only that of a DTensor");
  std::string_view dtype = sharding.at("data").at("dtype").as_text();
  dtype.remove_prefix(dtype.rfind('.') + 1);  // "torch."
  if (!is_dtype_name(dtype)) corrupt(sharding, printable(dtype) + " is no dtype");
  TensorStorageMetadata tensor;
  tensor.properties.dtype = dtype_from_name(dtype).value_or(DType::kUnknown);
  if (tensor.properties.dtype == DType::kUnknown) tensor.unknown_dtype = std::string(dtype);
  tensor.size = extents_of(sharding.at("data").at("global_shape"));
  return tensor;
}

// Adds the tensor whose name is `path`, of which the first element is the item. Each group of ranks
// has the whole tensor, so that the first is enough.
void add_tensor(const std::vector<std::string>& path, const PickleValue& groups, FileIndex& placed, ItemsRecord& record) {
  if (path.empty() || groups.size() == 0) corrupt(groups, "a tensor without an item, or without ranks");
  DeclaredTensor declared{path.front(), tensor_of(groups[0]), {}};
  for (std::size_t i = 1; i < path.size(); ++i) declared.fqn += "." + path[i];
  for (std::size_t i = 1; i < groups.size(); ++i)
    if (const auto other = tensor_of(groups[i]);
        other.size != declared.stored.size || other.properties.dtype != declared.stored.properties.dtype)
      unsupported(groups[i], "\"" + printable(declared.fqn) + "\" of different sizes or types on different ranks");
  const PickleValue data = groups[0].at("sharding_metadata").at("data");
  const DeviceMesh mesh = mesh_of(data.at("mesh_spec"), record.world_size);
  const std::vector<Placement> placements = placements_of(data.at("placements"));
  std::vector<int> ranks = mesh.ranks();
  std::sort(ranks.begin(), ranks.end());
  std::set<Box> seen;
  const bool is_empty = volume(declared.stored.size) == 0;
  for (const int rank : ranks) {
    // An empty tensor is one empty chunk. Other empty chunks need no file.
    const Box box = is_empty ? Box::whole(declared.stored.size) : *local_box(declared.stored.size, mesh, placements, rank);
    if ((volume(box.sizes) == 0 && !is_empty) || !seen.insert(box).second) continue;
    declared.stored.chunks.push_back(box);
    // Without a layout, a file has the default name.
    const auto [file, is_new] = placed.emplace(std::pair(path.front(), rank), record.files.size());
    if (is_new) record.files.push_back(default_file(path.front(), rank));
    declared.files.push_back(file->second);
  }
  record.tensors.push_back(std::move(declared));
}

// Adds the file of an item and rank. `layout` is None for the default name and format.
void add_file(const std::string& item, int rank, const PickleValue& layout, FileIndex& placed, ItemsRecord& record) {
  ItemFile file = default_file(item, rank);
  if (!layout.is_none()) {
    static const std::map<std::string_view, ItemFormat> formats{{"TorchSerialization", ItemFormat::kTorch},
                                                                {"JsonSerialization", ItemFormat::kJson},
                                                                {"RawSerialization", ItemFormat::kRaw},
                                                                {"SafetensorsSerialization", ItemFormat::kSafetensors}};
    const std::string_view type = layout.at("serialization_format").at("type").as_text();
    const auto format = formats.find(type);
    if (format == formats.end()) unsupported(layout, "the serialization " + printable(type) + ", which Cairn does not read");
    file.path = std::string(layout.at("file_path").as_text());
    file.format = format->second;
    // A record from elsewhere must not make Cairn read other files.
    const std::filesystem::path path(file.path);
    if (path.empty() || path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end())
      corrupt(layout, "the path " + printable(file.path) + ", which leads out of the checkpoint");
  }
  placed.emplace(std::pair(item, rank), record.files.size());
  record.files.push_back(std::move(file));
}

// Version 1.0: {path that begins with the item: groups}, and {rank: {item: layout}}.
void read_flat(const PickleValue& root, FileIndex& placed, ItemsRecord& record) {
  const PickleValue tensors = root.at("metadata"), layouts = root.at("rank_to_layout_info_mappings");
  for (std::size_t i = 0; i < layouts.size(); ++i)
    for (std::size_t j = 0; j < layouts.mapped(i).size(); ++j)
      add_file(std::string(layouts.mapped(i).key(j).as_text()), rank_of(layouts.key(i), record.world_size),
               layouts.mapped(i).mapped(j), placed, record);
  for (std::size_t i = 0; i < tensors.size(); ++i) add_tensor(path_of(tensors.key(i)), tensors.mapped(i), placed, record);
}

// Version 2.0: by item, the groups by path and the layouts by rank.
void read_nested(const PickleValue& root, FileIndex& placed, ItemsRecord& record) {
  const PickleValue items = root.at("metadata");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string item(items.key(i).as_text());
    const PickleValue tensors = items.mapped(i).at("nested_path_to_metadata"), layouts = items.mapped(i).at("rank_to_layout_info");
    for (std::size_t j = 0; j < layouts.size(); ++j)
      add_file(item, rank_of(layouts.key(j), record.world_size), layouts.mapped(j), placed, record);
    for (std::size_t j = 0; j < tensors.size(); ++j) {
      std::vector<std::string> path = path_of(tensors.key(j));
      path.insert(path.begin(), item);
      add_tensor(path, tensors.mapped(j), placed, record);
    }
  }
}

}  // namespace

ItemsRecord decode_items_record(ByteSpan bytes, const std::string& what) {
  const PickleTree tree = unpickle(bytes, what, {});
  const PickleValue root = tree.root();
  ItemsRecord record;
  const std::int64_t world_size = root.at("world_size").as_int();
  if (world_size < 1 || world_size > kWorldSizeMax) corrupt(root, "a world of " + std::to_string(world_size) + " ranks");
  record.world_size = static_cast<int>(world_size);
  const auto version = root.find("version");
  record.version = version ? std::string(version->as_text()) : "1.0";
  if (record.version != "1.0" && record.version != "2.0")
    unsupported(root, "version " + printable(record.version) + " of torch_checkpointing's record; known are 1.0 and 2.0");
  try {
    FileIndex placed;
    record.version == "1.0" ? read_flat(root, placed, record) : read_nested(root, placed, record);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    corrupt(root, error.what());  // a mesh or a placement that cannot be
  }
  return record;
}

}  // namespace cairn
