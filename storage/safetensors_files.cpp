#include <cairn/storage/safetensors_files.hpp>

#include <algorithm>
#include <cstdio>
#include <regex>
#include <unordered_map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/planning/require_coverage.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

// Ten times what the largest models need. A larger index is damage, and is not read into memory.
constexpr std::uint64_t kIndexBytesMax = 100'000'000;

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
                                              safetensors_file_name(file - 1, set.second) +
                                              ", one of a set of files. Complete the set, or remove the other files of it");
}

// Adds a tensor, or a part of one, to the metadata.
void add(const SafetensorsTensor& tensor, std::uint32_t file, const std::string& what, Metadata& metadata,
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
  stored.storage.push_back({file, tensor.offset, tensor.bytes(), tensor.offset, {}});
}

}  // namespace

std::string safetensors_file_name(std::size_t file, std::size_t files, std::optional<int> rank) {
  char text[96];
  if (rank)
    std::snprintf(text, sizeof text, "shard-%05d-model-%05zu-of-%05zu%s", *rank + 1, file + 1, files, kSafetensorsEnd);
  else
    std::snprintf(text, sizeof text, "model-%05zu-of-%05zu%s", file + 1, files, kSafetensorsEnd);
  return text;
}

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

Metadata safetensors_metadata(Store& store, const SafetensorsFiles& files) {
  Metadata metadata;
  std::unordered_map<std::string, std::size_t> entries;
  for (const auto& [name, promised] : files) {
    const std::string what = child_url(store.url(), name);
    const std::uint64_t length = store.size_bytes(name);
    const auto read = [&store, &file = name](std::uint64_t offset, MutableByteSpan to) { store.read(file, {{offset, to}}); };
    std::set<std::string> missing = promised;
    for (const SafetensorsTensor& tensor : read_safetensors(length, read, what)) {
      missing.erase(tensor.name);
      add(tensor, static_cast<std::uint32_t>(metadata.files.size()), what, metadata, entries);
    }
    if (!missing.empty())
      throw Error(ErrorCode::kCorrupt, what + " lacks \"" + printable(*missing.begin()) + "\", which the index says is there");
    metadata.files.push_back({name, length, {}, {}});
  }
  require_coverage(metadata, "cannot read the safetensors files at " + store.url());
  return metadata;
}

}  // namespace cairn
