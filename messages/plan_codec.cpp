#include <cairn/messages/plan_codec.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include <cairn/messages/columns.hpp>

namespace cairn {
namespace {

using columns::add_extents;
using columns::check_decode;
using columns::check_encode;

constexpr char kSavePlan[] = "save plan";
constexpr char kLoadPlan[] = "load plan";
constexpr char kWriteResults[] = "write results message";

// Protobuf passes numbers through that the enumeration does not have.
bool is_known(int value, int max) { return value > 0 && value <= max; }

template <class Item>  // ReadItem or const ReadItem
std::array<decltype(&std::declval<Item&>().lengths), 5> lists_of(Item& item) {
  return {&item.dest_chunk_offset, &item.dest_offsets, &item.storage_chunk_offset, &item.storage_offsets, &item.lengths};
}

}  // namespace

// --- save plans ----------------------------------------------------------------------------------

void to_proto(const SavePlan& plan, v1::SavePlan& message) {
  check_encode(plan.items.size() <= columns::kItemsMax, kSavePlan, "it has too many items");
  v1::Names names;
  columns::names_to_proto(plan.names, names);
  message.set_names(columns::serialize(names, kSavePlan));
  const auto items = static_cast<int>(plan.items.size());
  // A plan is a set of columns instead of a message per item: no allocation per item, and numbers
  // of one kind are next to one another.
  message.mutable_item_names()->Reserve(items);
  message.mutable_item_types()->Reserve(items);
  message.mutable_item_properties()->Reserve(items);
  message.mutable_item_dims()->Reserve(items);
  // Size, offsets and sizes of the chunk, for two dimensions.
  message.mutable_extents()->Reserve(items * 6);
  columns::PropertyEncoder properties(*message.mutable_properties(), kSavePlan);
  const bool with_tensors = has_tensor_hashes(plan);
  for (int i = 0; i < items; ++i) {
    const WriteItem& item = plan.items[static_cast<std::size_t>(i)];
    check_encode(item.name < plan.names.size(), kSavePlan, "an item refers to a name that is not there");
    check_encode(is_known(static_cast<int>(item.type), v1::WriteItemType_MAX), kSavePlan, "an item has an unknown type");
    message.add_item_names(item.name);
    message.add_item_types(static_cast<v1::WriteItemType>(item.type));
    // Lists of positions, because most plans have no such marks.
    if (item.per_rank) message.add_per_rank_items(static_cast<std::uint32_t>(i));
    if (item.frozen) message.add_frozen_items(static_cast<std::uint32_t>(i));
    if (with_tensors || item.type == WriteItemType::kByteIO) message.add_content_hashes(item.content_hash);
    if (item.type == WriteItemType::kByteIO) {
      message.add_content_bytes(item.content_bytes);
      continue;
    }
    const std::size_t dims = item.size.size();
    check_encode(dims <= columns::kDimsMax && item.chunk.offsets.size() == dims && item.chunk.sizes.size() == dims, kSavePlan,
                 "an item's size, chunk offsets and chunk sizes differ in their number of dimensions, or have too many");
    message.add_item_properties(properties.index_of(item.properties));
    message.add_item_dims(static_cast<std::uint32_t>(dims));
    add_extents(item.size, *message.mutable_extents());
    add_extents(item.chunk.offsets, *message.mutable_extents());
    add_extents(item.chunk.sizes, *message.mutable_extents());
  }
  v1::Paths mappings;
  columns::PathEncoder paths(mappings, kSavePlan);
  for (const auto& [name, path] : *plan.mappings) {
    check_encode(name < plan.names.size(), kSavePlan, "a path refers to a name that is not there");
    paths.add(name, plan.names[name], path);
  }
  message.set_mappings(columns::serialize(mappings, kSavePlan));
  message.set_planner_data(plan.planner_data);
  message.set_storage_data(plan.storage_data);
}

void SharedNames::decode(const v1::SavePlan& message, SavePlan& plan) {
  auto known = std::find_if(seen_.rbegin(), seen_.rend(), [&](const Seen& earlier) {
    return earlier.names == message.names() && earlier.mappings == message.mappings();
  });
  if (known == seen_.rend()) {
    v1::Names names;
    v1::Paths paths;
    columns::parse(message.names(), names, kSavePlan);
    columns::parse(message.mappings(), paths, kSavePlan);
    Seen seen{message.names(), message.mappings(), {}};
    seen.plan.names = columns::names_from_proto(names, kSavePlan);
    auto& mappings = seen.plan.mappings.edit();
    mappings.reserve(static_cast<std::size_t>(paths.names_size()));
    const columns::NameAt name_at = [&](std::size_t id) { return std::string_view(seen.plan.names[static_cast<NameId>(id)]); };
    columns::paths_from_proto(paths, seen.plan.names.size(), name_at, {}, kSavePlan,
                              [&](NameId name, Path path) { mappings.emplace_back(name, std::move(path)); });
    seen_.push_back(std::move(seen));
    if (seen_.size() > kSeenMax) seen_.pop_front();
    known = seen_.rbegin();
  }
  plan.names = known->plan.names;
  plan.mappings = known->plan.mappings;
}

SavePlan from_proto(const v1::SavePlan& message) {
  SharedNames none;
  return from_proto(message, none);
}

// Plans come from other ranks. After these checks the planner may index and multiply without
// looking.
SavePlan from_proto(const v1::SavePlan& message, SharedNames& seen) {
  SavePlan plan;
  seen.decode(message, plan);
  check_decode(message.item_names_size() == message.item_types_size(), kSavePlan, "the columns of its items differ in length");
  const int items = message.item_names_size();
  const std::vector<TensorProperties> properties = columns::properties_from_proto(message.properties(), kSavePlan);
  columns::ExtentsReader extents(message.extents(), kSavePlan);
  int tensors = 0;
  int bytes_objects = 0;
  // Tensors and bytes objects have columns of their own, shorter than those of all items.
  const bool with_tensors = message.content_hashes_size() == items;
  check_decode(message.item_properties_size() == message.item_dims_size() &&
                   (with_tensors || message.content_hashes_size() == message.content_bytes_size()) &&
                   message.item_properties_size() + message.content_bytes_size() == items,
               kSavePlan, "the columns of its tensors and bytes objects do not add up to its items");
  std::vector<WriteItem>& decoded = plan.items.edit();
  decoded.resize(static_cast<std::size_t>(items));
  for (int i = 0; i < items; ++i) {
    WriteItem& item = decoded[static_cast<std::size_t>(i)];
    item.name = message.item_names(i);
    check_decode(item.name < plan.names.size(), kSavePlan, "an item refers to a name that is not there");
    check_decode(is_known(message.item_types(i), v1::WriteItemType_MAX), kSavePlan, "an item has an unknown type");
    item.type = static_cast<WriteItemType>(message.item_types(i));
    if (with_tensors) item.content_hash = message.content_hashes(i);
    if (item.type == WriteItemType::kByteIO) {
      check_decode(bytes_objects < message.content_bytes_size(), kSavePlan, "it has fewer bytes objects than items of that type");
      if (!with_tensors) item.content_hash = message.content_hashes(bytes_objects);
      item.content_bytes = message.content_bytes(bytes_objects);
      ++bytes_objects;
      continue;
    }
    check_decode(tensors < message.item_dims_size(), kSavePlan, "it has fewer tensors than items of that type");
    const std::uint32_t which = message.item_properties(tensors);
    check_decode(which < properties.size(), kSavePlan, "a tensor refers to properties that are not there");
    item.properties = properties[which];
    const std::uint32_t dims = message.item_dims(tensors);
    ++tensors;
    item.size = extents.take(dims);
    item.chunk.offsets = extents.take(dims);
    item.chunk.sizes = extents.take(dims);
    // After this check, sums and products of these numbers cannot overflow.
    const std::size_t element_bytes = element_size(item.properties.dtype);
    check_decode(columns::is_countable(item.size, element_bytes) && columns::is_countable(item.chunk.sizes, element_bytes) &&
                     columns::is_countable(item.chunk.offsets, item.chunk.sizes),
                 kSavePlan, "a tensor is too large to count its bytes");
  }
  extents.check_end();
  for (const std::uint32_t i : message.per_rank_items()) {
    check_decode(i < decoded.size(), kSavePlan, "an item that is not there is marked as the rank's own");
    decoded[i].per_rank = true;
  }
  for (const std::uint32_t i : message.frozen_items()) {
    check_decode(i < decoded.size(), kSavePlan, "an item that is not there is marked as frozen");
    decoded[i].frozen = true;
  }
  plan.planner_data = message.planner_data();
  plan.storage_data = message.storage_data();
  return plan;
}

// --- shared reads --------------------------------------------------------------------------------

namespace {

constexpr char kShared[] = "shared reads";

void add_range(const FileRange& range, v1::FileRanges& message) {
  message.add_files(range.file);
  message.add_begins(range.begin);
  message.add_lengths(range.end - range.begin);
}

// Calls `take` with each range. Throws kCorrupt unless they are not empty, ascend and do not
// overlap.
template <class Take>
void take_ranges(const v1::FileRanges& message, Take take) {
  check_decode(message.begins_size() == message.files_size() && message.lengths_size() == message.files_size(), kShared,
               "the columns of its ranges differ in length");
  FileRange last;
  for (int i = 0; i < message.files_size(); ++i) {
    const FileRange range{message.files(i), message.begins(i), message.begins(i) + message.lengths(i)};
    const bool ascends = i == 0 || range.file > last.file || (range.file == last.file && range.begin >= last.end);
    check_decode(range.begin < range.end && ascends, kShared, "its ranges are empty, or do not ascend");
    take(i, range);
    last = range;
  }
}

void set_offer(const ReadOffer& offer, v1::ReadOffer& message) {
  message.set_mode(static_cast<v1::ReadOnce>(offer.mode));
  message.set_host(offer.host);
  message.set_address(offer.address);
  for (const FileRange& range : offer.needs) add_range(range, *message.mutable_needs());
}

ReadOffer offer_of(const v1::ReadOffer& message) {
  ReadOffer offer;
  if (message.mode() != v1::READ_ONCE_HOST && message.mode() != v1::READ_ONCE_WORLD) return offer;
  offer.mode = static_cast<ReadOnce>(message.mode());
  offer.host = message.host();
  offer.address = message.address();
  take_ranges(message.needs(), [&](int, const FileRange& range) { offer.needs.push_back(range); });
  return offer;
}

void set_shared(const SharedReads& shared, v1::SharedReads& message) {
  message.set_stream(shared.stream);
  for (const SharedRange& range : shared.ranges) {
    add_range(range.bytes, *message.mutable_ranges());
    message.add_readers(range.reader);
    *message.add_receivers()->mutable_ranks() = {range.receivers.begin(), range.receivers.end()};
  }
  for (const auto& [rank, address] : shared.addresses) {
    message.add_address_ranks(rank);
    message.add_addresses(address);
  }
}

SharedReads shared_of(const v1::SharedReads& message) {
  SharedReads shared;
  shared.stream = message.stream();
  const int ranges = message.ranges().files_size();
  check_decode(message.readers_size() == ranges && message.receivers_size() == ranges &&
                   message.addresses_size() == message.address_ranks_size(),
               kShared, "its columns differ in length");
  take_ranges(message.ranges(), [&](int i, const FileRange& range) {
    const auto& receivers = message.receivers(i).ranks();
    shared.ranges.push_back({range, message.readers(i), {receivers.begin(), receivers.end()}});
  });
  for (int i = 0; i < message.addresses_size(); ++i) shared.addresses.emplace_back(message.address_ranks(i), message.addresses(i));
  return shared;
}

}  // namespace

void to_proto(const PlanPart& part, v1::PlanPart& message) {
  for (const auto& [begin, items] : part.runs) {
    message.add_runs(begin);
    message.add_runs(items);
  }
  for (const auto& [item, chunk] : part.chunks) {
    check_encode(chunk.offsets.size() == chunk.sizes.size(), kSavePlan, "a chunk's offsets and sizes differ in dimensions");
    message.add_chunk_items(item);
    message.add_chunk_dims(static_cast<std::uint32_t>(chunk.offsets.size()));
    add_extents(chunk.offsets, *message.mutable_chunk_extents());
    add_extents(chunk.sizes, *message.mutable_chunk_extents());
  }
  message.set_has_mappings(part.has_mappings);
  message.set_planner_data(part.planner_data);
  message.set_storage_data(part.storage_data);
}

PlanPart from_proto(const v1::PlanPart& message) {
  check_decode(message.runs_size() % 2 == 0 && message.chunk_items_size() == message.chunk_dims_size(), kSavePlan,
               "the columns of a part differ in length");
  PlanPart part;
  for (int i = 0; i < message.runs_size(); i += 2) part.runs.push_back({message.runs(i), message.runs(i + 1)});
  columns::ExtentsReader extents(message.chunk_extents(), kSavePlan);
  for (int i = 0; i < message.chunk_items_size(); ++i) {
    Box chunk{extents.take(message.chunk_dims(i)), extents.take(message.chunk_dims(i))};
    check_decode(columns::is_countable(chunk.offsets, chunk.sizes), kSavePlan, "a chunk is too large to count its elements");
    part.chunks.emplace_back(message.chunk_items(i), std::move(chunk));
  }
  extents.check_end();
  part.has_mappings = message.has_mappings();
  part.planner_data = message.planner_data();
  part.storage_data = message.storage_data();
  return part;
}

// --- load plans ----------------------------------------------------------------------------------

void to_proto(const LoadPlan& plan, v1::LoadPlan& message) {
  check_encode(plan.items.size() <= columns::kItemsMax, kLoadPlan, "it has too many items");
  columns::names_to_proto(plan.names, *message.mutable_names());
  const auto items = static_cast<int>(plan.items.size());
  message.mutable_item_types()->Reserve(items);
  message.mutable_dest_names()->Reserve(items);
  message.mutable_storage_names()->Reserve(items);
  message.mutable_storage_chunks()->Reserve(items);
  // Five lists per item. Each has its own number of dimensions, because those of a bytes object
  // need not agree.
  message.mutable_dims()->Reserve(items * 5);
  message.mutable_extents()->Reserve(items * 10);
  for (const ReadItem& item : plan.items) {
    check_encode(item.dest_name < plan.names.size() && item.storage_name < plan.names.size(), kLoadPlan,
                 "an item refers to a name that is not there");
    check_encode(is_known(static_cast<int>(item.type), v1::LoadItemType_MAX), kLoadPlan, "an item has an unknown type");
    message.add_item_types(static_cast<v1::LoadItemType>(item.type));
    message.add_dest_names(item.dest_name);
    message.add_storage_names(item.storage_name);
    message.add_storage_chunks(item.storage_chunk);
    for (const Extents* list : lists_of(item)) {
      check_encode(list->size() <= columns::kDimsMax && (item.type == LoadItemType::kByteIO || list->size() == item.lengths.size()),
                   kLoadPlan, "an item's offsets and lengths differ in their number of dimensions, or have too many");
      message.add_dims(static_cast<std::uint32_t>(list->size()));
      add_extents(*list, *message.mutable_extents());
    }
  }
  message.set_planner_data(plan.planner_data);
  message.set_storage_data(plan.storage_data);
  if (plan.offer.mode != ReadOnce::kOff) set_offer(plan.offer, *message.mutable_offer());
  if (plan.shared) set_shared(*plan.shared, *message.mutable_shared());
}

LoadPlan from_proto(const v1::LoadPlan& message) {
  LoadPlan plan;
  plan.names = columns::names_from_proto(message.names(), kLoadPlan);
  const int items = message.item_types_size();
  check_decode(message.dest_names_size() == items && message.storage_names_size() == items &&
                   message.storage_chunks_size() == items && message.dims_size() % 5 == 0 && message.dims_size() / 5 == items,
               kLoadPlan, "the columns of its items differ in length");
  columns::ExtentsReader extents(message.extents(), kLoadPlan);
  plan.items.resize(static_cast<std::size_t>(items));
  for (int i = 0; i < items; ++i) {
    ReadItem& item = plan.items[static_cast<std::size_t>(i)];
    check_decode(is_known(message.item_types(i), v1::LoadItemType_MAX), kLoadPlan, "an item has an unknown type");
    item.type = static_cast<LoadItemType>(message.item_types(i));
    item.dest_name = message.dest_names(i);
    item.storage_name = message.storage_names(i);
    check_decode(item.dest_name < plan.names.size() && item.storage_name < plan.names.size(), kLoadPlan,
                 "an item refers to a name that is not there");
    item.storage_chunk = message.storage_chunks(i);
    const std::uint32_t* dims = message.dims().data() + 5 * static_cast<std::ptrdiff_t>(i);
    for (Extents* list : lists_of(item)) *list = extents.take(*dims++);
    if (item.type == LoadItemType::kByteIO) continue;
    for (const Extents* list : lists_of(item))
      check_decode(list->size() == item.lengths.size(), kLoadPlan,
                   "an item's offsets and lengths differ in their number of dimensions");
    check_decode(columns::is_countable(item.lengths, 1) && columns::is_countable(item.dest_offsets, item.lengths) &&
                     columns::is_countable(item.storage_offsets, item.lengths) &&
                     columns::is_countable(item.dest_chunk_offset, item.dest_offsets) &&
                     columns::is_countable(item.storage_chunk_offset, item.storage_offsets),
                 kLoadPlan, "an item is too large to count its elements");
  }
  extents.check_end();
  plan.planner_data = message.planner_data();
  plan.storage_data = message.storage_data();
  plan.offer = offer_of(message.offer());
  if (message.has_shared()) plan.shared = std::make_shared<const SharedReads>(shared_of(message.shared()));
  return plan;
}

// --- write results -------------------------------------------------------------------------------

void to_proto(const WriteResults& results, v1::WriteResults& message) {
  for (const FileResult& file : results.files) {
    v1::FileResult& entry = *message.add_files();
    entry.set_name(file.name);
    entry.set_length_bytes(file.length_bytes);
    entry.set_crc32(file.crc32);
    entry.set_trailer_length_bytes(file.trailer_length_bytes);
    entry.set_written_by(file.written_by);
    entry.mutable_bytes_item_lengths()->Add(file.bytes_item_lengths.begin(), file.bytes_item_lengths.end());
  }
  for (const WriteResult& item : results.items) {
    v1::ItemResult& entry = *message.add_items();
    entry.set_fqn(item.index.fqn);
    if (item.index.offset) {
      check_encode(item.index.offset->size() <= columns::kDimsMax, kWriteResults, "an item's offset has too many dimensions");
      entry.set_has_offset(true);
      add_extents(*item.index.offset, *entry.mutable_offset());
    }
    entry.set_size_bytes(item.size_bytes);
    entry.set_relative_path(item.relative_path);
    entry.set_offset_bytes(item.offset_bytes);
    entry.set_length_bytes(item.length_bytes);
    entry.set_user_data(item.user_data);
  }
}

// The coordinator compares these numbers with its plan; here only sums that cannot be are refused.
WriteResults from_proto(const v1::WriteResults& message) {
  WriteResults results;
  results.files.reserve(static_cast<std::size_t>(message.files_size()));
  for (const v1::FileResult& entry : message.files()) {
    FileResult& file = results.files.emplace_back();
    file.name = entry.name();
    check_decode(!file.name.empty(), kWriteResults, "a file has no name");
    file.length_bytes = entry.length_bytes();
    file.crc32 = entry.crc32();
    file.trailer_length_bytes = entry.trailer_length_bytes();
    file.written_by = entry.written_by();
    check_decode(file.trailer_length_bytes <= file.length_bytes, kWriteResults, "a trailer is longer than its file");
    file.bytes_item_lengths.assign(entry.bytes_item_lengths().begin(), entry.bytes_item_lengths().end());
    // Subtracts from the length: the sum of damaged lengths could overflow.
    std::uint64_t left = file.length_bytes;
    for (const std::uint64_t length : file.bytes_item_lengths) {
      check_decode(length <= left, kWriteResults, "the items of a file are longer than the file");
      left -= length;
    }
  }
  results.items.reserve(static_cast<std::size_t>(message.items_size()));
  for (const v1::ItemResult& entry : message.items()) {
    WriteResult& item = results.items.emplace_back();
    item.index.fqn = entry.fqn();
    if (entry.has_offset()) {
      columns::ExtentsReader offset(entry.offset(), kWriteResults);
      item.index.offset = offset.take(static_cast<std::size_t>(entry.offset_size()));
    } else {
      // A flag tells the offset of a 0-dim tensor, which has no numbers, from no offset.
      check_decode(entry.offset_size() == 0, kWriteResults, "an item without an offset has one");
    }
    item.size_bytes = entry.size_bytes();
    item.relative_path = entry.relative_path();
    item.offset_bytes = entry.offset_bytes();
    item.length_bytes = entry.length_bytes();
    std::uint64_t end = 0;
    check_decode(!__builtin_add_overflow(item.offset_bytes, item.length_bytes, &end), kWriteResults,
                 "an item ends beyond what 64 bits can count");
    item.user_data = entry.user_data();
  }
  return results;
}

}  // namespace cairn
