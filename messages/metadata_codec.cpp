#include <cairn/messages/metadata_codec.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include <cairn/messages/metadata.pb.h>
#include <cairn/messages/columns.hpp>

namespace cairn {
namespace {

using columns::add_extents;
using columns::check_decode;
using columns::check_encode;

constexpr char kWhat[] = "metadata section";
// Limits on what a few encoded bytes can expand to.
constexpr std::uint32_t kScalarChunksMax = 16;  // of a 0-dim tensor; a whole one has one chunk
constexpr std::size_t kTransformsMax = 16;      // per location
constexpr std::size_t kTransformNameMax = 256;  // bytes

// One encoded list may be named by a million locations, and each gets a copy.
bool are_plausible(const std::vector<std::string>& transforms) {
  const auto is_short = [](const std::string& name) { return name.size() <= kTransformNameMax; };
  return transforms.size() <= kTransformsMax && std::all_of(transforms.begin(), transforms.end(), is_short);
}

// --- encoding ------------------------------------------------------------------------------------

// Writes the locations of all chunks and bytes objects as columns, in the order of the entries.
class LocationEncoder {
 public:
  LocationEncoder(v1::Locations& message, const std::vector<FileInfo>& files) : message_(message), files_(files) {}

  void add(const StorageInfo& storage) {
    check_encode(storage.file < files_.size(), kWhat, "something is stored in a file that is not there");
    // Files of PyTorch have no recorded length.
    const std::uint64_t file_end = files_[storage.file].length.value_or(std::numeric_limits<std::uint64_t>::max());
    if (storage.offset > file_end || storage.length > file_end - storage.offset)
      columns::fail_encode(kWhat, "something is stored beyond the end of file '" + files_[storage.file].name + "'");
    check_encode(storage.payload_offset == 0 ||
                     (storage.payload_offset >= storage.offset && storage.payload_offset - storage.offset <= storage.length),
                 kWhat, "elements are stored outside their archive");
    message_.add_files(storage.file);
    message_.add_offsets(storage.offset);
    message_.add_lengths(storage.length);
    message_.add_payload_offsets(storage.payload_offset);
    // These columns are written only if a location has transforms, or a digest.
    transforms_.push_back(index_of(storage.transforms));
    any_transform_ = any_transform_ || transforms_.back() > 0;
    digests_.insert(digests_.end(), storage.digest.begin(), storage.digest.end());
    any_digest_ = any_digest_ || storage.digest != ItemDigest{};
  }

  void finish() {
    if (any_transform_) message_.mutable_transforms()->Add(transforms_.begin(), transforms_.end());
    if (any_digest_) message_.mutable_digests()->Add(digests_.begin(), digests_.end());
  }

 private:
  std::uint32_t index_of(const std::vector<std::string>& transforms) {
    // 0 stands for no transforms, so lists count from 1.
    if (transforms.empty()) return 0;
    check_encode(are_plausible(transforms), kWhat, "something has more transforms, or longer names of them, than are supported");
    const auto [known, added] = lists_.emplace(transforms, static_cast<std::uint32_t>(lists_.size() + 1));
    if (added) {
      v1::TransformList& list = *message_.add_transform_lists();
      for (const std::string& name : transforms) list.add_names(name);
    }
    return known->second;
  }

  v1::Locations& message_;
  const std::vector<FileInfo>& files_;
  std::map<std::vector<std::string>, std::uint32_t> lists_;
  std::vector<std::uint32_t> transforms_;
  bool any_transform_ = false;
  std::vector<std::uint64_t> digests_;
  bool any_digest_ = false;
};

// Entries have no message of their own. A checkpoint of a large model has millions of chunks, and
// columns of numbers take a fraction of the space and time.
void entries_to_proto(const Metadata& metadata, v1::Metadata& message) {
  columns::PropertyEncoder properties(*message.mutable_properties(), kWhat);
  LocationEncoder locations(*message.mutable_locations(), metadata.files);
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (const auto* bytes = std::get_if<BytesStorageMetadata>(&entry)) {
      message.add_kinds(v1::ENTRY_KIND_BYTES);
      message.add_stored(bytes->storage.has_value());
      if (bytes->storage) locations.add(*bytes->storage);
      continue;
    }
    const auto& tensor = std::get<TensorStorageMetadata>(entry);
    check_encode(tensor.size.size() <= columns::kDimsMax, kWhat, "a tensor has too many dimensions");
    check_encode(std::all_of(tensor.size.begin(), tensor.size.end(), [](std::int64_t size) { return size >= 0; }), kWhat,
                 "a size is negative");
    if (!columns::is_countable(tensor.size, element_size(tensor.properties.dtype)))
      columns::fail_encode(kWhat, "'" + fqn + "' of size " + to_string(tensor.size) + " is too large to count its bytes");
    message.add_kinds(v1::ENTRY_KIND_TENSOR);
    message.add_stored(!tensor.storage.empty());
    message.add_tensor_properties(properties.index_of(tensor.properties));
    message.add_dims(static_cast<std::uint32_t>(tensor.size.size()));
    add_extents(tensor.size, *message.mutable_sizes());
    // The decoder has this limit; see entries_from_proto.
    check_encode(!tensor.size.empty() || tensor.chunks.size() <= kScalarChunksMax, kWhat, "a 0-dim tensor has many chunks");
    message.add_chunk_counts(static_cast<std::uint32_t>(tensor.chunks.size()));
    for (const Box& chunk : tensor.chunks) {
      if (!fits(chunk, tensor.size))
        columns::fail_encode(kWhat, "chunk " + to_string(chunk) + " of '" + fqn + "' lies outside " + to_string(tensor.size));
      add_extents(chunk.offsets, *message.mutable_chunk_extents());
      add_extents(chunk.sizes, *message.mutable_chunk_extents());
    }
    if (!tensor.storage.empty() && tensor.storage.size() != tensor.chunks.size())
      columns::fail_encode(kWhat, "'" + fqn + "' has " + std::to_string(tensor.chunks.size()) + " chunks and " +
                                      std::to_string(tensor.storage.size()) + " locations");
    for (const StorageInfo& storage : tensor.storage) locations.add(storage);
  }
  locations.finish();
}

void files_to_proto(const Metadata& metadata, v1::Metadata& message) {
  std::set<std::string_view> names;
  for (const FileInfo& file : metadata.files) {
    check_encode(!file.name.empty(), kWhat, "a file has no name");
    if (!names.insert(file.name).second) columns::fail_encode(kWhat, "two files have the name '" + file.name + "'");
    check_encode(!file.length || !file.trailer_length || *file.trailer_length <= *file.length, kWhat,
                 "a trailer is longer than its file");
    v1::File& entry = *message.add_files();
    entry.set_name(file.name);
    if (file.length) entry.set_length(*file.length);
    if (file.crc32) entry.set_crc32(*file.crc32);
    if (file.trailer_length) entry.set_trailer_length(*file.trailer_length);
    entry.set_written_by(file.written_by);
  }
}

void names_and_paths_to_proto(const Metadata& metadata, v1::Metadata& message) {
  NameTable names;
  names.reserve(metadata.state_dict_metadata.size());
  for (std::size_t i = 0; i < metadata.state_dict_metadata.size(); ++i) {
    const std::string& fqn = metadata.state_dict_metadata[i].first;
    // Entry i has name i, so the entries need no column for their names.
    if (names.intern(fqn) != i) columns::fail_encode(kWhat, "'" + fqn + "' appears twice");
  }
  columns::PathEncoder paths(*message.mutable_planner_data(), kWhat);
  // A path may belong to a name without an entry. Such names follow those of the entries.
  for (const auto& [fqn, path] : metadata.planner_data) paths.add(names.intern(fqn), fqn, path);
  columns::names_to_proto(names, *message.mutable_names());
}

void commit_to_proto(const CommitInfo& commit, v1::CommitInfo& message) {
  check_encode(commit.world_size >= 0, kWhat, "the world size is negative");
  message.set_sequence(commit.sequence);
  if (commit.step) message.set_step(*commit.step);
  message.set_world_size(static_cast<std::uint32_t>(commit.world_size));
  message.set_plan_digest(commit.plan_digest);
  message.set_writer_version(commit.writer_version);
  for (const auto& [key, value] : commit.user_metadata) {
    v1::UserMetadata& entry = *message.add_user_metadata();
    entry.set_key(key);
    entry.set_value(value);
  }
  for (const std::string& save_id : commit.retired) message.add_retired(save_id);
  for (const std::string& save_id : commit.shares_with) message.add_shares_with(save_id);
}

// --- decoding ------------------------------------------------------------------------------------

// Takes locations off the columns, in the order in which the encoder wrote them.
class LocationDecoder {
 public:
  LocationDecoder(const v1::Locations& message, const std::vector<FileInfo>& files) : message_(message), files_(files) {
    const int count = message.files_size();
    check_decode(message.offsets_size() == count && message.lengths_size() == count && message.payload_offsets_size() == count &&
                     (message.transforms_size() == count || message.transforms_size() == 0) &&
                     (message.digests_size() / 2 == count || message.digests_size() == 0) && message.digests_size() % 2 == 0,
                 kWhat, "the columns of its locations differ in length");
    for (const v1::TransformList& list : message.transform_lists()) {
      lists_.emplace_back(list.names().begin(), list.names().end());
      check_decode(are_plausible(lists_.back()), kWhat, "a list of transforms is longer than supported");
    }
  }

  std::size_t left() const { return static_cast<std::size_t>(message_.files_size() - next_); }

  StorageInfo take() {
    check_decode(next_ < message_.files_size(), kWhat, "there are fewer locations than chunks and bytes objects");
    StorageInfo storage;
    storage.file = message_.files(next_);
    storage.offset = message_.offsets(next_);
    storage.length = message_.lengths(next_);
    storage.payload_offset = message_.payload_offsets(next_);
    const std::uint32_t transforms = message_.transforms_size() > 0 ? message_.transforms(next_) : 0;
    if (message_.digests_size() > 0) storage.digest = {message_.digests(2 * next_), message_.digests(2 * next_ + 1)};
    ++next_;
    check_decode(storage.file < files_.size(), kWhat, "something is stored in a file that is not there");
    std::uint64_t end = 0;
    const bool overflow = __builtin_add_overflow(storage.offset, storage.length, &end);
    if (overflow || end > files_[storage.file].length.value_or(std::numeric_limits<std::uint64_t>::max()))
      columns::fail_decode(kWhat, "something is stored beyond the end of file '" + files_[storage.file].name + "'");
    check_decode(storage.payload_offset == 0 || (storage.payload_offset >= storage.offset && storage.payload_offset <= end), kWhat,
                 "elements are stored outside their archive");
    if (transforms > 0) {
      check_decode(transforms <= lists_.size(), kWhat, "a location refers to transforms that are not there");
      storage.transforms = lists_[transforms - 1];
    }
    return storage;
  }

 private:
  const v1::Locations& message_;
  const std::vector<FileInfo>& files_;
  std::vector<std::vector<std::string>> lists_;
  int next_ = 0;
};

std::vector<FileInfo> files_from_proto(const v1::Metadata& message) {
  std::vector<FileInfo> files;
  files.reserve(static_cast<std::size_t>(message.files_size()));
  std::set<std::string_view> names;
  for (const v1::File& entry : message.files()) {
    FileInfo& file = files.emplace_back();
    file.name = entry.name();
    check_decode(!file.name.empty(), kWhat, "a file has no name");
    check_decode(names.insert(entry.name()).second, kWhat, "two files have the same name");
    if (entry.has_length()) file.length = entry.length();
    if (entry.has_crc32()) file.crc32 = entry.crc32();
    if (entry.has_trailer_length()) file.trailer_length = entry.trailer_length();
    file.written_by = entry.written_by();
    check_decode(!file.length || !file.trailer_length || *file.trailer_length <= *file.length, kWhat,
                 "a trailer is longer than its file");
  }
  return files;
}

// The counterpart of entries_to_proto. Each column has a position of its own; at the end all
// columns must be used up, so that no number is read as another's.
void entries_from_proto(const v1::Metadata& message, const NameTable& names, Metadata& metadata) {
  const int entries = message.kinds_size();
  // There may be more names than entries: those of paths come last.
  check_decode(message.stored_size() == entries && static_cast<std::size_t>(entries) <= names.size(), kWhat,
               "the columns of its entries differ in length");
  check_decode(message.dims_size() == message.tensor_properties_size() && message.dims_size() == message.chunk_counts_size(), kWhat,
               "the columns of its tensors differ in length");
  const std::vector<TensorProperties> properties = columns::properties_from_proto(message.properties(), kWhat);
  columns::ExtentsReader sizes(message.sizes(), kWhat);
  columns::ExtentsReader chunk_extents(message.chunk_extents(), kWhat);
  LocationDecoder locations(message.locations(), metadata.files);
  int tensors = 0;
  metadata.state_dict_metadata.reserve(static_cast<std::size_t>(entries));
  for (int i = 0; i < entries; ++i) {
    const std::string& fqn = names[static_cast<NameId>(i)];
    if (message.kinds(i) == v1::ENTRY_KIND_BYTES) {
      BytesStorageMetadata bytes;
      if (message.stored(i)) bytes.storage = locations.take();
      metadata.state_dict_metadata.emplace_back(fqn, std::move(bytes));
      continue;
    }
    check_decode(message.kinds(i) == v1::ENTRY_KIND_TENSOR, kWhat, "an entry is of an unknown kind");
    check_decode(tensors < message.dims_size(), kWhat, "there are fewer tensors than entries of that kind");
    TensorStorageMetadata tensor;
    const std::uint32_t which = message.tensor_properties(tensors);
    check_decode(which < properties.size(), kWhat, "a tensor refers to properties that are not there");
    tensor.properties = properties[which];
    // `take` checks the number of dimensions.
    const std::uint32_t dims = message.dims(tensors);
    tensor.size = sizes.take(dims);
    if (!columns::is_countable(tensor.size, element_size(tensor.properties.dtype)))
      columns::fail_decode(kWhat, "'" + fqn + "' of size " + to_string(tensor.size) + " is too large to count its bytes");
    const std::uint32_t chunks = message.chunk_counts(tensors);
    ++tensors;
    // A chunk count is accepted only if the columns have as many entries. 0-dim chunks have no
    // entries, so they have a fixed limit.
    const std::size_t most =
        dims > 0 ? static_cast<std::size_t>(message.chunk_extents_size()) / (std::size_t{2} * dims) : kScalarChunksMax;
    check_decode(chunks <= most, kWhat, "a tensor has more chunks than there are");
    tensor.chunks.reserve(chunks);
    for (std::uint32_t c = 0; c < chunks; ++c) {
      Box chunk;
      chunk.offsets = chunk_extents.take(dims);
      chunk.sizes = chunk_extents.take(dims);
      if (!fits(chunk, tensor.size))
        columns::fail_decode(kWhat, "chunk " + to_string(chunk) + " of '" + fqn + "' lies outside " + to_string(tensor.size));
      tensor.chunks.push_back(std::move(chunk));
    }
    if (message.stored(i)) {
      // Checked before `reserve`: a damaged count must not allocate.
      check_decode(chunks <= locations.left(), kWhat, "there are fewer locations than chunks and bytes objects");
      tensor.storage.reserve(chunks);
      for (std::uint32_t c = 0; c < chunks; ++c) tensor.storage.push_back(locations.take());
    }
    metadata.state_dict_metadata.emplace_back(fqn, std::move(tensor));
  }
  check_decode(tensors == message.dims_size(), kWhat, "there are more tensors than entries of that kind");
  check_decode(locations.left() == 0, kWhat, "there are more locations than chunks and bytes objects");
  sizes.check_end();
  chunk_extents.check_end();
}

CommitInfo commit_from_proto(const v1::CommitInfo& message) {
  CommitInfo commit;
  commit.sequence = message.sequence();
  if (message.has_step()) commit.step = message.step();
  check_decode(message.world_size() <= static_cast<std::uint32_t>(std::numeric_limits<int>::max()), kWhat,
               "the world size is too large");
  commit.world_size = static_cast<int>(message.world_size());
  commit.plan_digest = message.plan_digest();
  commit.writer_version = message.writer_version();
  for (const v1::UserMetadata& entry : message.user_metadata())
    check_decode(commit.user_metadata.emplace(entry.key(), entry.value()).second, kWhat,
                 "a key of the user's metadata appears twice");
  // Not checked here: ids that are not Cairn's are ignored where the list is used.
  commit.retired.assign(message.retired().begin(), message.retired().end());
  commit.shares_with.assign(message.shares_with().begin(), message.shares_with().end());
  return commit;
}

}  // namespace

// Deterministic: equal metadata give equal bytes, because nothing here is a map of Protobuf's.
Bytes encode_metadata(const Metadata& metadata) {
  v1::Metadata message;
  names_and_paths_to_proto(metadata, message);
  files_to_proto(metadata, message);
  entries_to_proto(metadata, message);
  message.set_checkpoint_id(metadata.checkpoint_id);
  message.set_save_id(metadata.save_id);
  message.set_version(metadata.version);
  if (metadata.commit) commit_to_proto(*metadata.commit, *message.mutable_commit());
  message.set_user_planner_data(metadata.user_planner_data);
  message.set_user_storage_data(metadata.user_storage_data);
  return columns::serialize(message, kWhat);
}

Metadata decode_metadata(ByteSpan bytes) {
  v1::Metadata message;
  columns::parse(bytes, message, kWhat);
  Metadata metadata;
  const NameTable names = columns::names_from_proto(message.names(), kWhat);
  // Before the entries, whose locations are compared with the files.
  metadata.files = files_from_proto(message);
  entries_from_proto(message, names, metadata);
  columns::paths_from_proto(message.planner_data(), names, kWhat,
                            [&](NameId name, Path path) { metadata.planner_data.emplace_back(names[name], std::move(path)); });
  metadata.checkpoint_id = message.checkpoint_id();
  metadata.save_id = message.save_id();
  metadata.version = message.version();
  if (message.has_commit()) metadata.commit = commit_from_proto(message.commit());
  metadata.user_planner_data = message.user_planner_data();
  metadata.user_storage_data = message.user_storage_data();
  return metadata;
}

}  // namespace cairn
