#include <cairn/storage/format/metadata_codec.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <type_traits>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cairn/messages/metadata.pb.h>
#include <cairn/base/digest.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/messages/columns.hpp>
#include <cairn/planning/stored_items.hpp>
#include <cairn/storage/format/entry_columns.hpp>

namespace cairn {
namespace {

using columns::add_extents;
using columns::check_decode;
using columns::check_encode;

constexpr const char* kWhat = kSectionName;
constexpr char kUnequal[] = "the columns of its locations differ in length";
// Limits on what a few encoded bytes can expand to.
constexpr std::size_t kTransformsMax = 16;      // per location
constexpr std::size_t kTransformNameMax = 256;  // bytes

// One encoded list may be named by a million locations, and each gets a copy.
bool are_plausible(const std::vector<std::string>& transforms) {
  const auto is_short = [](const std::string& name) { return name.size() <= kTransformNameMax; };
  return transforms.size() <= kTransformsMax && std::all_of(transforms.begin(), transforms.end(), is_short);
}

// Visits the items in the order of the entries.
template <class AnyMetadata, class Visit>
void visit_items(AnyMetadata& metadata, Visit visit) {
  for (auto& named : metadata.state_dict_metadata) visit_stored(named.second, visit);
}

// --- what must hold, before encoding and after decoding ------------------------------------------

using Fail = void (*)(const char* what, const std::string& reason);  // throws

void check_files(const std::vector<FileInfo>& files, Fail fail) {
  std::set<std::string_view> names;
  for (const FileInfo& file : files) {
    if (file.name.empty()) fail(kWhat, "a file has no name");
    if (!names.insert(file.name).second) fail(kWhat, "two files have the name '" + file.name + "'");
    if (file.length && file.trailer_length && *file.trailer_length > *file.length) fail(kWhat, "a trailer is longer than its file");
  }
}

void check_location(const StorageInfo& storage, const std::vector<FileInfo>& files, Fail fail) {
  if (storage.file >= files.size()) fail(kWhat, "something is stored in a file that is not there");
  const FileInfo& file = files[storage.file];
  // Files of PyTorch have no recorded length.
  const std::uint64_t end = file.length.value_or(std::numeric_limits<std::uint64_t>::max());
  if (storage.offset > end || storage.length > end - storage.offset)
    fail(kWhat, "something is stored beyond the end of file '" + file.name + "'");
  if (storage.payload_offset != 0 &&
      (storage.payload_offset < storage.offset || storage.payload_offset - storage.offset > storage.length))
    fail(kWhat, "elements are stored outside their archive");
}

void check_tensor(const std::string& fqn, const TensorStorageMetadata& tensor, Fail fail) {
  for (const std::int64_t size : tensor.size)
    if (size < 0) fail(kWhat, "a size is negative");
  if (!columns::is_countable(tensor.size, element_size(tensor.properties.dtype)))
    fail(kWhat, "'" + fqn + "' of size " + to_string(tensor.size) + " is too large to count its bytes");
  for (const Box& chunk : tensor.chunks)
    if (!fits(chunk, tensor.size))
      fail(kWhat, "chunk " + to_string(chunk) + " of '" + fqn + "' lies outside " + to_string(tensor.size));
  if (!tensor.storage.empty() && tensor.storage.size() != tensor.chunks.size())
    fail(kWhat, "'" + fqn + "' has " + std::to_string(tensor.chunks.size()) + " chunks and " +
                    std::to_string(tensor.storage.size()) + " locations");
}

// --- places --------------------------------------------------------------------------------------

// Whether the length of an item does not follow from the layout of its file.
bool has_length(const StorageInfo& storage, bool is_bytes, const std::vector<bool>& is_explicit) {
  return is_bytes || !storage.transforms.empty() || is_explicit[storage.file];
}

// Places the items in their files as file_layout.hpp does: tensors, transformed tensors, bytes
// objects, each in the order of the entries. Calls `place` with each location, its offset, its
// length and the offset of its elements. Skips files that are explicit, and makes those explicit
// that the items do not fill.
template <class AnyMetadata, class Place>
void lay_out(AnyMetadata& metadata, std::vector<bool>& is_explicit, Place place) {
  constexpr auto kPlacedBytesMax = std::uint64_t{1} << 62;  // the layout can be computed anywhere in such a file
  std::vector<std::uint64_t> ends(metadata.files.size()), left;
  for (std::size_t i = 0; i < metadata.files.size(); ++i) {
    const FileInfo& file = metadata.files[i];
    left.push_back(file.length.value_or(0) - file.trailer_length.value_or(0));
    if (!file.length || !file.trailer_length || left[i] > kPlacedBytesMax) is_explicit[i] = true;
  }
  const auto add = [&](auto& storage, std::uint64_t length, std::uint64_t payload_offset) {
    if (length > left[storage.file]) return void(is_explicit[storage.file] = true);
    place(storage, ends[storage.file], length, payload_offset);
    ends[storage.file] += length;
    left[storage.file] -= length;
  };
  using Storage = std::conditional_t<std::is_const_v<AnyMetadata>, const StorageInfo, StorageInfo>;
  std::vector<Storage*> transformed, bytes_objects;
  visit_items(metadata, [&](Storage& storage, const TensorStorageMetadata* tensor, const Box* chunk) {
    if (is_explicit[storage.file]) return;
    if (!tensor) return bytes_objects.push_back(&storage);
    if (!storage.transforms.empty()) return transformed.push_back(&storage);
    const ItemLayout layout = item_lengths(tensor->properties.dtype, chunk->sizes).at(ends[storage.file]);
    add(storage, layout.total_bytes(), ends[storage.file] + layout.prefix_bytes);
  });
  for (const auto* group : {&transformed, &bytes_objects})
    for (Storage* storage : *group)
      if (!is_explicit[storage->file]) add(*storage, storage->length, storage->transforms.empty() ? ends[storage->file] : 0);
  for (std::size_t i = 0; i < left.size(); ++i)
    if (left[i] > 0) is_explicit[i] = true;
}

// --- encoding ------------------------------------------------------------------------------------

// Entries have no message of their own. A checkpoint of a large model has millions of chunks, and
// columns of numbers take a fraction of the space and time.
void entries_to_proto(const Metadata& metadata, v1::Metadata& message) {
  columns::PropertyEncoder properties(*message.mutable_properties(), kWhat);
  for (const auto& named : metadata.state_dict_metadata) {
    if (const auto* bytes = std::get_if<BytesStorageMetadata>(&named.second)) {
      message.add_kinds(bytes->storage ? v1::ENTRY_KIND_BYTES : v1::ENTRY_KIND_UNSTORED_BYTES);
      if (bytes->storage) check_location(*bytes->storage, metadata.files, columns::fail_encode);
      continue;
    }
    const auto& tensor = std::get<TensorStorageMetadata>(named.second);
    check_tensor(named.first, tensor, columns::fail_encode);
    for (const StorageInfo& storage : tensor.storage) check_location(storage, metadata.files, columns::fail_encode);
    check_encode(tensor.size.size() <= columns::kDimsMax, kWhat, "a tensor has too many dimensions");
    message.add_tensor_properties(properties.index_of(tensor.properties));
    message.add_dims(static_cast<std::uint32_t>(tensor.size.size()));
    add_extents(tensor.size, *message.mutable_sizes());
    if (tensor.storage.size() == 1 && tensor.chunks[0] == Box::whole(tensor.size)) {
      message.add_kinds(v1::ENTRY_KIND_WHOLE_TENSOR);
      continue;
    }
    message.add_kinds(tensor.storage.empty() ? v1::ENTRY_KIND_UNSTORED_TENSOR : v1::ENTRY_KIND_TENSOR);
    // The decoder has this limit; see entries_from_proto.
    check_encode(!tensor.size.empty() || tensor.chunks.size() <= kScalarChunksMax, kWhat, "a 0-dim tensor has many chunks");
    message.add_chunk_counts(static_cast<std::uint32_t>(tensor.chunks.size()));
    for (const Box& chunk : tensor.chunks) {
      add_extents(chunk.offsets, *message.mutable_chunk_extents());
      add_extents(chunk.sizes, *message.mutable_chunk_extents());
    }
  }
}

void locations_to_proto(const Metadata& metadata, const std::vector<bool>& is_explicit, v1::Locations& message) {
  std::map<std::vector<std::string>, std::uint32_t> lists;
  visit_items(metadata, [&](const StorageInfo& storage, const TensorStorageMetadata* tensor, const Box*) {
    message.add_files(storage.file);
    if (has_length(storage, !tensor, is_explicit)) message.add_lengths(storage.length);
    if (is_explicit[storage.file]) {
      message.add_offsets(storage.offset);
      message.add_payload_offsets(storage.payload_offset);
    }
    // 0 stands for no transforms, so lists count from 1.
    if (storage.transforms.empty()) return message.add_transforms(0);
    check_encode(are_plausible(storage.transforms), kWhat,
                 "something has more transforms, or longer names of them, than are supported");
    const auto [known, added] = lists.emplace(storage.transforms, static_cast<std::uint32_t>(lists.size() + 1));
    message.add_transforms(known->second);
    if (!added) return;
    v1::TransformList& list = *message.add_transform_lists();
    for (const std::string& name : storage.transforms) list.add_names(name);
  });
  if (lists.empty()) message.clear_transforms();
}

void files_to_proto(const Metadata& metadata, const std::vector<bool>& is_explicit, v1::Metadata& message) {
  for (std::size_t i = 0; i < metadata.files.size(); ++i) {
    const FileInfo& file = metadata.files[i];
    v1::File& entry = *message.add_files();
    entry.set_name(file.name);
    if (file.length) entry.set_length(*file.length);
    if (file.crc32) entry.set_crc32(*file.crc32);
    if (file.trailer_length) entry.set_trailer_length(*file.trailer_length);
    entry.set_written_by(file.written_by);
    entry.set_explicit_positions(is_explicit[i]);
  }
}

void names_and_paths_to_proto(const Metadata& metadata, v1::Metadata& message) {
  // Entry i has name i, so the entries need no column for their names.
  NameTable names = metadata.names();
  for (NameId i = 0; names.size() < metadata.state_dict_metadata.size(); ++i)
    if (const std::string& fqn = metadata.state_dict_metadata[i].first; names.find(fqn) != i)
      columns::fail_encode(kWhat, "'" + fqn + "' appears twice");
  columns::PathEncoder paths(*message.mutable_planner_data(), kWhat);
  // A path may belong to a name without an entry. Such names follow those of the entries.
  for (std::size_t i = 0; i < metadata.planner_data.size(); ++i) {
    const auto& [fqn, path] = metadata.planner_data[i];
    const auto known = names.find(fqn, static_cast<NameId>(i));  // mostly, the paths are in the order of the entries
    paths.add(known ? *known : names.intern(fqn), fqn, path);
  }
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

std::vector<FileInfo> files_from_proto(const v1::Metadata& message) {
  std::vector<FileInfo> files;
  files.reserve(static_cast<std::size_t>(message.files_size()));
  for (const v1::File& entry : message.files()) {
    FileInfo& file = files.emplace_back();
    file.name = entry.name();
    if (entry.has_length()) file.length = entry.length();
    if (entry.has_crc32()) file.crc32 = entry.crc32();
    if (entry.has_trailer_length()) file.trailer_length = entry.trailer_length();
    file.written_by = entry.written_by();
  }
  return files;
}

// The counterpart of entries_to_proto.
void entries_from_proto(const v1::Metadata& message, bool is_version_1, const Selection& selection, const columns::NameAt& name_at,
                        Metadata& metadata) {
  const std::vector<TensorProperties> properties = columns::properties_from_proto(message.properties(), kWhat);
  EntryColumns columns(message, is_version_1);  // checks the counts
  metadata.state_dict_metadata.reserve(selection.entries(static_cast<std::size_t>(message.kinds_size())));
  while (columns.next()) {
    const auto entry = static_cast<std::size_t>(columns.entry);
    if (!selection.has_entry(entry)) {
      columns.skip();
      continue;
    }
    std::string fqn(name_at(entry));
    if (columns.is_bytes) {
      BytesStorageMetadata bytes;
      if (columns.is_stored) bytes.storage.emplace();
      metadata.state_dict_metadata.emplace_back(std::move(fqn), std::move(bytes));
      continue;
    }
    TensorStorageMetadata tensor;
    check_decode(columns.properties < properties.size(), kWhat, "a tensor refers to properties that are not there");
    tensor.properties = properties[columns.properties];
    tensor.size = columns.sizes.take(columns.dims);
    if (columns.is_whole()) {
      tensor.chunks.assign(1, Box::whole(tensor.size));
    } else {
      tensor.chunks.reserve(columns.chunks);
      for (std::uint32_t c = 0; c < columns.chunks; ++c)
        tensor.chunks.push_back({columns.chunk_extents.take(columns.dims), columns.chunk_extents.take(columns.dims)});
    }
    check_tensor(fqn, tensor, columns::fail_decode);
    tensor.storage.resize(columns.locations());
    metadata.state_dict_metadata.emplace_back(std::move(fqn), std::move(tensor));
  }
  columns.check_end();
}

// The counterpart of locations_to_proto.
void locations_from_proto(const v1::Metadata& section, bool is_version_1, const Selection& selection,
                          const std::vector<bool>& is_explicit, Metadata& metadata) {
  const v1::Locations& message = section.locations();
  const int count = message.files_size(), offsets = message.offsets_size();
  check_decode((message.transforms_size() == count || message.transforms_size() == 0) && message.payload_offsets_size() == offsets,
               kWhat, kUnequal);
  std::vector<std::vector<std::string>> lists(1);  // 0: no transforms
  for (const v1::TransformList& list : message.transform_lists()) {
    lists.emplace_back(list.names().begin(), list.names().end());
    check_decode(are_plausible(lists.back()), kWhat, "a list of transforms is longer than supported");
  }
  int next = 0, next_length = 0, next_offset = 0;
  const auto take = [&](StorageInfo& storage, bool is_bytes) {
    storage.file = message.files(next);
    check_decode(storage.file < is_explicit.size(), kWhat, "something is stored in a file that is not there");
    const std::uint32_t list = message.transforms_size() > 0 ? message.transforms(next) : 0;
    check_decode(list < lists.size(), kWhat, "a location refers to transforms that are not there");
    if (list > 0) storage.transforms = lists[list];
    ++next;
    if (has_length(storage, is_bytes, is_explicit)) {
      check_decode(next_length < message.lengths_size(), kWhat, kUnequal);
      storage.length = message.lengths(next_length++);
    }
    if (is_explicit[storage.file]) {
      check_decode(next_offset < offsets, kWhat, kUnequal);
      storage.offset = message.offsets(next_offset);
      storage.payload_offset = message.payload_offsets(next_offset++);
    }
    check_location(storage, metadata.files, columns::fail_decode);
  };
  auto named = metadata.state_dict_metadata.begin();
  for (EntryColumns columns(section, is_version_1); columns.next(); columns.skip()) {
    if (selection.has_entry(static_cast<std::size_t>(columns.entry))) {
      visit_stored((named++)->second,
                   [&](StorageInfo& storage, const TensorStorageMetadata*, const Box*) { take(storage, columns.is_bytes); });
    } else if (!columns.is_bytes && next_offset == offsets && message.transforms_size() == 0) {
      next += static_cast<int>(columns.locations());  // nothing but their files, which the selection has checked
    } else {
      for (std::size_t i = 0; i < columns.locations(); ++i) {
        StorageInfo passed_over;
        take(passed_over, columns.is_bytes);
      }
    }
  }
  check_decode(next_length == message.lengths_size() && next_offset == offsets, kWhat, kUnequal);
}

// Adds the positions that follow from the layout.
void place_items(std::vector<bool> is_explicit, const Selection& selection, Metadata& metadata) {
  for (std::size_t i = 0; i < is_explicit.size(); ++i)
    if (!selection.has_file(i)) is_explicit[i] = true;  // not all of its items are here
  const std::vector<bool> before = is_explicit;
  lay_out(metadata, is_explicit,
          [](StorageInfo& storage, std::uint64_t offset, std::uint64_t length, std::uint64_t payload_offset) {
            storage.offset = offset;
            storage.length = length;
            storage.payload_offset = payload_offset;
          });
  for (std::size_t i = 0; i < before.size(); ++i)
    if (is_explicit[i] != before[i])
      columns::fail_decode(kWhat, "the items of file '" + metadata.files[i].name + "' do not add up to the length of the file");
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

// Lists the fields of a parsed section that this version does not know.
void add_later_fields(ByteSpan section, Metadata& metadata) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const std::uint8_t*>(section.data()),
                                               static_cast<int>(section.size()));
  while (const std::uint32_t tag = input.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag), begin = input.CurrentPosition();
    WireFormatLite::SkipField(&input, tag);
    if (field > v1::Metadata::kChecksumFieldNumber) metadata.later_fields.emplace_back(field, input.CurrentPosition() - begin);
  }
}

}  // namespace

// Deterministic: equal metadata give equal bytes, because nothing here is a map of Protobuf's.
Bytes encode_metadata(const Metadata& metadata) { return encode_section(encode_entries(metadata), metadata); }

EncodedEntries encode_entries(const Metadata& metadata) {
  v1::Metadata message;
  names_and_paths_to_proto(metadata, message);
  entries_to_proto(metadata, message);
  std::vector<bool> is_explicit(metadata.files.size());
  lay_out(metadata, is_explicit,
          [&](const StorageInfo& at, std::uint64_t offset, std::uint64_t length, std::uint64_t payload_offset) {
            if (at.offset != offset || at.length != length || at.payload_offset != payload_offset) is_explicit[at.file] = true;
          });
  locations_to_proto(metadata, is_explicit, *message.mutable_locations());
  return {columns::serialize(message, kWhat), std::move(is_explicit)};
}

Bytes encode_section(const EncodedEntries& entries, const Metadata& metadata) {
  check_files(metadata.files, columns::fail_encode);
  v1::Metadata message;
  files_to_proto(metadata, entries.is_explicit, message);
  message.set_checkpoint_id(metadata.checkpoint_id);
  message.set_version(metadata.version);
  // The fields of a message may be in any order, and parts of it may follow one another.
  return entries.bytes + columns::serialize(message, kWhat) + encode_head(metadata);
}

Bytes encode_head(const Metadata& metadata) {
  v1::Metadata message;
  message.set_save_id(metadata.save_id);
  if (metadata.commit) commit_to_proto(*metadata.commit, *message.mutable_commit());
  return columns::serialize(message, kWhat);
}

Bytes encode_checksum(ByteSpan section, ByteSpan footer_fields) {
  v1::Metadata message;
  message.set_checksum(crc32(crc32(0, section), footer_fields));
  return columns::serialize(message, kWhat);
}

Metadata decode_metadata(ByteSpan bytes, std::uint32_t version, const NeededNames* needed) {
  v1::Metadata message;
  columns::parse(bytes, message, kWhat);
  const bool is_version_1 = version == 1;
  if (is_version_1) message.mutable_names()->mutable_shared()->resize(static_cast<std::size_t>(message.names().lengths_size()));
  Metadata metadata;
  Selection selection;
  NameTable names;
  NameList needed_names;
  if (needed && !selection.select(message, is_version_1, *needed, needed_names)) return decode_metadata(bytes, version);
  if (!needed) names = columns::names_from_proto(message.names(), kWhat);
  const std::size_t name_count = needed ? needed_names.size() : names.size();
  const columns::NameAt name_at = [&](std::size_t id) {
    return needed ? needed_names[id] : std::string_view(names[static_cast<NameId>(id)]);
  };
  metadata.files = files_from_proto(message);
  check_files(metadata.files, columns::fail_decode);
  entries_from_proto(message, is_version_1, selection, name_at, metadata);
  std::vector<bool> is_explicit;
  for (const v1::File& file : message.files()) is_explicit.push_back(is_version_1 || file.explicit_positions());
  locations_from_proto(message, is_version_1, selection, is_explicit, metadata);
  place_items(std::move(is_explicit), selection, metadata);
  if (needed) selection.remove_others(std::move(*message.mutable_names()), metadata);
  if (!needed) metadata.planner_data.reserve(std::min<std::size_t>(name_count, message.planner_data().names_size()));
  if (!needed || !needed->prefixes.empty())
    columns::paths_from_proto(message.planner_data(), name_count, name_at, selection.paths(), kWhat,
                              [&](NameId name, Path path) { metadata.planner_data.emplace_back(name_at(name), std::move(path)); });
  metadata.checkpoint_id = message.checkpoint_id();
  metadata.save_id = message.save_id();
  metadata.version = message.version();
  if (message.has_commit()) metadata.commit = commit_from_proto(message.commit());
  add_later_fields(bytes, metadata);
  if (!needed) metadata.reindex(std::move(names));
  return metadata;
}

}  // namespace cairn
