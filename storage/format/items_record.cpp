#include <cairn/storage/format/items_record.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <cairn/base/error.hpp>
#include <cairn/state/device_mesh.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/pickle/unicode.hpp>
#include <cairn/state/pickle/unpickler.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

constexpr std::int64_t kWorldSizeMax = 1 << 20;  // bounds the table of files
constexpr std::string_view kTorchPrefix = "torch.";

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

DeviceMesh mesh_of(const PickleValue& spec, int world_size) {
  std::vector<int> ranks;
  const PickleValue data = spec.at("mesh_data");
  for (std::size_t i = 0; i < data.size(); ++i) ranks.push_back(rank_of(data[i], world_size));
  return DeviceMesh(extents_of(spec.at("mesh_shape")).to_vector(), std::move(ranks));
}

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

TensorStorageMetadata tensor_of(const PickleValue& data) {
  TensorStorageMetadata tensor;
  std::string_view dtype = data.at("dtype").as_text();
  if (dtype.substr(0, kTorchPrefix.size()) == kTorchPrefix) dtype.remove_prefix(kTorchPrefix.size());
  if (!is_dtype_name(dtype)) corrupt(data, printable(dtype) + " is no dtype");
  tensor.properties.dtype = dtype_from_name(dtype).value_or(DType::kUnknown);
  if (tensor.properties.dtype == DType::kUnknown) tensor.unknown_dtype = std::string(dtype);
  tensor.size = extents_of(data.at("global_shape"));
  return tensor;
}

// Adds the tensor whose name is `path`, of which the first element is the item. Each group of ranks
// has the whole tensor, so that the group with the lowest rank is enough.
void add_tensor(const std::vector<std::string>& path, const PickleValue& groups, ItemsRecord& record) {
  if (path.empty()) corrupt(groups, "a tensor without an item");
  DeclaredTensor declared;
  declared.item = declared.fqn = path.front();
  for (std::size_t i = 1; i < path.size(); ++i) declared.fqn += "." + path[i];
  std::optional<PickleValue> first;
  int lowest = record.world_size;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const PickleValue sharding = groups[i].at("sharding_metadata");
    if (const std::string_view type = sharding.at("type").as_text(); type != "DTensorShardingMetadata")
      unsupported(sharding, "sharding of the kind " + printable(type) + ", which Cairn does not read: only that of a DTensor");
    TensorStorageMetadata tensor = tensor_of(sharding.at("data"));
    if (i > 0 && (tensor.size != declared.stored.size || tensor.properties.dtype != declared.stored.properties.dtype))
      unsupported(groups[i], "\"" + printable(declared.fqn) + "\" of different sizes or types on different ranks");
    declared.stored = std::move(tensor);
    const PickleValue ranks = groups[i].at("ranks");
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      if (const int found = rank_of(ranks[rank], record.world_size); found < lowest) {
        lowest = found;
        first = sharding.at("data");
      }
  }
  if (!first) corrupt(groups, "\"" + printable(declared.fqn) + "\", which no rank holds");
  const DeviceMesh mesh = mesh_of(first->at("mesh_spec"), record.world_size);
  const std::vector<Placement> placements = placements_of(first->at("placements"));
  std::vector<int> ranks = mesh.ranks();
  std::sort(ranks.begin(), ranks.end());
  std::set<Box> seen;
  const bool is_empty = volume(declared.stored.size) == 0;
  for (const int rank : ranks) {
    // An empty tensor is one empty chunk. Other empty chunks need no file.
    const Box box = is_empty ? Box::whole(declared.stored.size) : *local_box(declared.stored.size, mesh, placements, rank);
    if ((volume(box.sizes) == 0 && !is_empty) || !seen.insert(box).second) continue;
    declared.stored.chunks.push_back(box);
    declared.ranks.push_back(rank);
  }
  record.tensors.push_back(std::move(declared));
}

void add_file(const std::string& item, int rank, const PickleValue& layout, ItemsRecord& record) {
  ItemFile file{item, rank, item_file_name(item, rank), ItemFormat::kTorch};
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
  }
  record.files.push_back(std::move(file));
}

// Version 1.0: {path that begins with the item: groups}, and {rank: {item: layout}}.
void read_flat(const PickleValue& root, ItemsRecord& record) {
  const PickleValue tensors = root.at("metadata"), layouts = root.at("rank_to_layout_info_mappings");
  for (std::size_t i = 0; i < tensors.size(); ++i) add_tensor(path_of(tensors.key(i)), tensors.mapped(i), record);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const PickleValue of_rank = layouts.mapped(i);
    for (std::size_t j = 0; j < of_rank.size(); ++j)
      add_file(std::string(of_rank.key(j).as_text()), rank_of(layouts.key(i), record.world_size), of_rank.mapped(j), record);
  }
}

// Version 2.0: by item, the groups by path and the layouts by rank.
void read_nested(const PickleValue& root, ItemsRecord& record) {
  const PickleValue items = root.at("metadata");
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string item(items.key(i).as_text());
    const PickleValue tensors = items.mapped(i).at("nested_path_to_metadata"), layouts = items.mapped(i).at("rank_to_layout_info");
    for (std::size_t j = 0; j < tensors.size(); ++j) {
      std::vector<std::string> path = path_of(tensors.key(j));
      path.insert(path.begin(), item);
      add_tensor(path, tensors.mapped(j), record);
    }
    for (std::size_t j = 0; j < layouts.size(); ++j)
      add_file(item, rank_of(layouts.key(j), record.world_size), layouts.mapped(j), record);
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
    record.version == "1.0" ? read_flat(root, record) : read_nested(root, record);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    corrupt(root, error.what());  // a mesh or a placement that cannot be
  }
  // Without a layout, a file has the default name.
  std::set<std::pair<std::string, int>> placed;
  for (const ItemFile& file : record.files) placed.emplace(file.item, file.rank);
  for (const DeclaredTensor& tensor : record.tensors)
    for (const int rank : tensor.ranks)
      if (placed.emplace(tensor.item, rank).second)
        record.files.push_back({tensor.item, rank, item_file_name(tensor.item, rank), ItemFormat::kTorch});
  return record;
}

}  // namespace cairn
