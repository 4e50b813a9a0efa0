#include <cairn/tools/tensor_source.hpp>

#include <algorithm>
#include <iostream>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/rank_text.hpp>
#include <cairn/formats/safetensors.hpp>
#include <cairn/formats/torch_archive.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/storage/checkpoint_bytes.hpp>
#include <cairn/storage/format/missing_parts.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/read_metadata.hpp>
#include <cairn/storage/safetensors_files.hpp>
#include <cairn/storage/saved_files.hpp>
#include <cairn/tools/commands.hpp>
#include <cairn/tools/value_text.hpp>

namespace cairn::tools {
namespace {

class CheckpointSource : public TensorSource {
 public:
  explicit CheckpointSource(OpenedCheckpoint opened, CheckParts check = CheckParts::kNo)
      : store_(std::move(opened.store)),
        metadata_(std::make_shared<const Metadata>(std::move(opened.metadata))),
        check_(check),
        checked_(store_, metadata_, true),
        unchecked_(store_, metadata_, false) {}

  const Metadata& metadata() const override { return *metadata_; }
  std::string name() const override { return printable(store_->url()); }
  const char* writer() const override { return metadata_->commit ? "Cairn" : "PyTorch"; }
  bool has_archives() const override { return true; }

  Bytes read(const std::string& fqn, const Box& box) override {
    const auto& stored = std::get<TensorStorageMetadata>(*metadata_->find(fqn));
    require_chunks(fqn, stored, box);
    require_readable(fqn);
    CheckpointBytes* reader = &checked_;
    if (is_archived(stored) && box != Box::whole(stored.size)) {
      reader = &unchecked_;
      if (check_ == CheckParts::kYes)
        for (const std::uint32_t chunk : ChunkIndex(stored.chunks).find(box)) check_archive(fqn, stored, chunk);
    }
    return reader->elements(fqn, stored, box);
  }

  Bytes read_bytes(const std::string& fqn) override {
    require_readable(fqn);
    return checked_.value(fqn);
  }

  SavedValue read_value(const std::string& fqn) override {
    const Bytes bytes = read_bytes(fqn);
    try {
      return saved_value(TorchArchive(bytes, "a saved value"));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      throw Error(error.code(), fmt::format("\"{}\": {}", printable(fqn), error.what()));
    }
  }

 private:
  // Throws kCorrupt if the chunks do not cover `box`, or overlap: the tool must not invent data
  // that the checkpoint lacks.
  void require_chunks(const std::string& fqn, const TensorStorageMetadata& stored, const Box& box) {
    const auto known = first_faults_.find(fqn);
    if (known != first_faults_.end() && !known->second) return;
    std::optional<CoverageFault>& first = first_faults_[fqn];
    if (known == first_faults_.end()) {
      for (CoverageFault& fault : check_coverage(fqn, stored.size, stored.chunks))
        if (!first || first->kind == CoverageFault::Kind::kGap) first = std::move(fault);
      if (!first) return;
    }
    std::int64_t covered = 0;
    for (const std::uint32_t chunk : ChunkIndex(stored.chunks).find(box))
      if (const auto common = intersect(stored.chunks[chunk], box)) covered += volume(common->sizes);
    if (first->kind == CoverageFault::Kind::kGap && covered == volume(box.sizes)) return;
    throw Error(ErrorCode::kCorrupt, fmt::format("the chunks of \"{}\" do not cover the tensor exactly: {}", printable(fqn),
                                                 printable(to_string(*first))));
  }

  // Returns whether the only checksum covers the whole chunk, as in PyTorch's checkpoints. Cairn's
  // have block checksums.
  bool is_archived(const TensorStorageMetadata& stored) const {
    return !metadata_->commit && !stored.storage.empty() && stored.storage.front().payload_offset == 0;
  }

  // Verifies a whole chunk of a PyTorch checkpoint against its checksum, once.
  void check_archive(const std::string& fqn, const TensorStorageMetadata& stored, std::uint32_t chunk) {
    const StorageInfo& storage = stored.storage[chunk];
    if (!checked_archives_.emplace(storage.file, storage.offset).second) return;
    const std::string& file = metadata_->files.at(storage.file).name;
    const std::string what = fmt::format("\"{}\" in {} at offset {}", fqn, file, storage.offset);
    const PlainItem item = undo_transforms(
        storage, stored.properties.dtype, &stored.chunks[chunk].sizes,
        [&](std::uint64_t offset, MutableByteSpan to) {
          store_->read(file, {{storage.offset + offset, to}});
        },
        what);
    const TorchArchive archive(item.size_bytes, item.read_at, what);
    const TorchArchive::Storage elements = read_archived_tensor(archive).storage;
    constexpr std::uint64_t kReadBytes = 4u << 20;
    Bytes block;
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < elements.size_bytes; at += block.size()) {
      block.resize(std::min(kReadBytes, elements.size_bytes - at));
      item.read_at(elements.offset + at, {block.data(), block.size()});
      crc = crc32(crc, block);
    }
    if (elements.crc32 && crc != *elements.crc32)
      throw Error(ErrorCode::kCorrupt, archive.what() + " is damaged: the checksum of its elements does not match");
  }

  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const Metadata> metadata_;
  const CheckParts check_;
  CheckpointBytes checked_;
  CheckpointBytes unchecked_;
  std::set<std::pair<std::uint32_t, std::uint64_t>> checked_archives_;
  std::map<std::string, std::optional<CoverageFault>> first_faults_;  // of each tensor read so far; nothing if there is no fault
};

// The parts of a checkpoint that ranks saved for themselves, joined in memory. File names begin
// with the part's place.
struct JoinedParts {
  OpenedCheckpoint checkpoint;
  Metadata values;                                  // of each rank, under names such as "rank_2_of_8/key"
  std::map<std::string, std::vector<int>> holders;  // by key of a value: the ranks that hold it
  int world_size = 0;
  std::map<std::string, std::string> faults;  // by key: why the parts do not make one entry
};

class PartsSource final : public CheckpointSource {
 public:
  PartsSource(JoinedParts parts, CheckParts check)
      : CheckpointSource({parts.checkpoint.store, std::move(parts.checkpoint.metadata)}, check),
        parts_(std::move(parts)),
        values_(parts_.checkpoint.store, std::make_shared<const Metadata>(std::move(parts_.values)), true) {}

  std::string why_unreadable(const std::string& fqn) const override {
    auto fault = parts_.faults.find(fqn);
    if (fault == parts_.faults.end()) fault = parts_.faults.emplace(fqn, difference(fqn)).first;
    return fault->second.empty() ? TensorSource::why_unreadable(fqn) : printable(fault->second);
  }

 private:
  // Returns on which ranks a value differs from that on the lowest; "" if on none. Reads the values
  // only now, because most commands need few of them.
  std::string difference(const std::string& fqn) const {
    const auto held = parts_.holders.find(fqn);
    if (held == parts_.holders.end()) return "";
    const std::vector<int>& ranks = held->second;
    const auto value_on = [&](int rank) { return values_.value(part_name(rank, parts_.world_size) + "/" + fqn); };
    const Bytes first = ranks.size() > 1 ? value_on(ranks.front()) : Bytes();
    std::vector<int> others;
    Bytes other;
    for (std::size_t i = 1; i < ranks.size(); ++i)
      if (Bytes value = value_on(ranks[i]); value != first) {
        if (others.empty()) other = std::move(value);
        others.push_back(ranks[i]);
      }
    if (others.empty()) return "";
    const auto shown = [](const Bytes& bytes) { return value_text(saved_value(TorchArchive(bytes, "a saved value")), 64); };
    return fmt::format("its value on {} differs from that on rank {}: {} on rank {}, {} on rank {}", name_ranks(others),
                       ranks.front(), shown(first), ranks.front(), shown(other), others.front());
  }

  mutable JoinedParts parts_;  // `faults` grows by the values that have been compared, with "" if they are equal
  mutable CheckpointBytes values_;
};

// Returns the records of the parts at `store`, by rank; nothing if there are none. Throws kMismatch
// if worlds of several sizes have saved there.
std::map<int, Metadata> records_of_parts(Store& store, int& world_size) {
  std::map<int, Metadata> records;
  std::error_code error;
  const auto path = local_path(store.url());
  if ((path && !std::filesystem::is_directory(*path, error)) || store.exists(kCommitRecordName)) return records;
  for (const ObjectName& place : store.children()) {
    const auto part = part_of_name(place);
    if (!part || part->world_size > kWorldSizeMax || !store.exists(place + "/" + kCommitRecordName)) continue;
    if (!records.empty() && part->world_size != world_size)
      throw Error(ErrorCode::kMismatch, fmt::format("worlds of {} and {} ranks have saved parts at {}: remove those of one world",
                                                    world_size, part->world_size, printable(store.url())));
    world_size = part->world_size;
    const auto opened = open_store(child_url(store.url(), place));
    records.emplace(part->rank, read_metadata(*opened));
  }
  return records;
}

// Throws kMismatch unless all parts are of one save, as far as their records tell. The step alone
// does not: after a restart, which makes a new world, a run may reach it again.
void require_one_save(const std::string& place, const std::map<int, Metadata>& records) {
  // By step, sequence and the incarnation of the world.
  std::map<std::tuple<std::int64_t, std::uint64_t, std::string>, std::vector<int>> saves;
  for (const auto& [rank, record] : records) {
    if (!record.commit || !record.commit->step)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("rank {} did not save its part at {} with use_collectives off: its record has no step", rank, place));
    const auto world = record.commit->user_metadata.find(kPartWorldKey);
    saves[{*record.commit->step, record.commit->sequence, world == record.commit->user_metadata.end() ? "" : world->second}]
        .push_back(rank);
  }
  if (saves.size() == 1) return;
  std::string text;
  for (const auto& [save, ranks] : saves)
    text += fmt::format("{}save number {} of step {} of {}{}", text.empty() ? "" : ", ", std::get<1>(save), std::get<0>(save),
                        name_ranks(ranks), std::get<2>(save).empty() ? "" : " in world " + std::get<2>(save).substr(0, 8));
  throw Error(
      ErrorCode::kMismatch,
      fmt::format("the parts at {} are of different saves: {} (counted at each rank's place). Remove those of one save; or, "
                  "if all hold the same state, let each rank load its part and save it at a new place",
                  place, text));
}

std::string kind_of(const Metadata::Entry& entry) {
  const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
  return tensor == nullptr ? "a value"
                           : fmt::format("a tensor of size {} and type {}", to_string(tensor->size), tensor->type_name());
}

JoinedParts join(std::shared_ptr<Store> store, std::map<int, Metadata> records, int world_size) {
  JoinedParts joined;
  const std::string place = printable(store->url());
  require_one_save(place, records);
  std::optional<CommitInfo> commit = records.begin()->second.commit;
  commit->user_metadata.erase(kPartWorldKey);
  commit->world_size = joined.world_size = world_size;
  JoinedRecords all;
  std::unordered_map<std::string, std::pair<int, std::string>> kinds;  // by key: the lowest rank, and what it is there
  std::unordered_map<std::string, std::pair<int, Path>> paths;
  for (auto& [rank, record] : records) {
    const std::string part = part_name(rank, world_size) + "/";
    for (FileInfo& file : record.files) file.name = part + file.name;
    for (const auto& [fqn, entry] : record.state_dict_metadata) {
      const std::string kind = kind_of(entry);
      const auto& [lowest, kind_there] = kinds.try_emplace(fqn, rank, kind).first->second;
      if (kind != kind_there) {
        joined.faults.emplace(fqn, fmt::format("it is {} on rank {}, and {} on rank {}", kind_there, lowest, kind, rank));
      } else if (const auto* const value = std::get_if<BytesStorageMetadata>(&entry); value != nullptr && value->storage) {
        BytesStorageMetadata placed = *value;
        placed.storage->file += all.file_count();
        joined.values.state_dict_metadata.emplace_back(part + fqn, std::move(placed));
        joined.holders[fqn].push_back(rank);
      }
    }
    for (const auto& [fqn, path] : record.planner_data) {
      const auto& [lowest, path_there] = paths.try_emplace(fqn, rank, path).first->second;
      if (path != path_there)
        joined.faults.emplace(fqn,
                              fmt::format("its path of dicts and lists on rank {} differs from that on rank {}", rank, lowest));
    }
    all.add(std::move(record));
  }
  Metadata& metadata = joined.checkpoint.metadata;
  metadata = all.take();
  metadata.reindex();
  metadata.commit = std::move(commit);
  joined.values.files = metadata.files;
  joined.values.commit = metadata.commit;

  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank)
    if (records.count(rank) == 0) missing.push_back(rank);
  const std::string lacking =
      missing.empty() ? "" : fmt::format("{} {} no part", name_ranks(missing), missing.size() == 1 ? "has" : "have");
  if (!missing.empty()) std::cerr << fmt::format("cairn: {} of the checkpoint at {}\n", lacking, place);
  for (const CoverageFault& fault : check_coverage(metadata))
    joined.faults.emplace(fault.fqn, to_string(fault) + (missing.empty() ? "" : "; " + lacking));
  joined.checkpoint.store = std::move(store);
  return joined;
}

class SavedFilesSource final : public TensorSource {
 public:
  SavedFilesSource(const std::filesystem::path& path, bool is_file)
      : path_(std::filesystem::absolute(path).lexically_normal().string()),
        is_file_(is_file),
        files_(is_file ? open_torch_save(path_) : open_torch_checkpointing(path_)) {}

  const Metadata& metadata() const override { return files_->metadata(); }
  std::string name() const override { return printable(path_); }
  const char* writer() const override { return is_file_ ? "torch.save" : "torch_checkpointing"; }
  bool is_file() const override { return is_file_; }

  Bytes read(const std::string& fqn, const Box& box) override { return files_->read(fqn, box); }
  Bytes read_bytes(const std::string& fqn) override { return files_->bytes(fqn); }
  SavedValue read_value(const std::string& fqn) override { return files_->value(fqn); }
  std::string why_unreadable(const std::string& fqn) const override { return files_->why_unreadable(fqn); }

 private:
  const std::string path_;
  const bool is_file_;
  const std::unique_ptr<SavedFiles> files_;
};

// Files of safetensors, which are places in their directory as those of a checkpoint are.
class SafetensorsSource final : public CheckpointSource {
 public:
  SafetensorsSource(std::string name, const OpenedCheckpoint& opened)
      : CheckpointSource(opened), name_(std::move(name)), packed_(opened.store, packed(opened.metadata), true) {}

  std::string name() const override { return name_; }
  const char* writer() const override { return "safetensors"; }
  bool has_archives() const override { return false; }
  bool is_file() const override { return true; }

  Bytes read_packed(const std::string& fqn, const Box& box) override {
    return packed_.elements(fqn, *as_packed_bytes(std::get<TensorStorageMetadata>(*metadata().find(fqn))), box);
  }

 private:
  static std::shared_ptr<const Metadata> packed(Metadata metadata) {
    for (auto& [fqn, entry] : metadata.state_dict_metadata)
      if (auto bytes = as_packed_bytes(std::get<TensorStorageMetadata>(entry))) entry = std::move(*bytes);
    return std::make_shared<const Metadata>(std::move(metadata));
  }

  const std::string name_;
  CheckpointBytes packed_;
};

}  // namespace

std::string TensorSource::why_unreadable(const std::string& fqn) const {
  const auto* stored = std::get_if<TensorStorageMetadata>(metadata().find(fqn));
  if (stored == nullptr) return "";
  for (const StorageInfo& storage : stored->storage)
    if (const std::string reason = why_not_undone(storage.transforms); !reason.empty()) return printable(reason);
  if (stored->properties.dtype != DType::kUnknown) return "";
  if (as_packed_bytes(*stored))
    return fmt::format(
        "its type is {}, which this version of Cairn does not know; `cairn convert --to safetensors` copies its bytes",
        printable(stored->unknown_dtype));
  return fmt::format("its type is torch.{}, which this version of Cairn does not know", stored->unknown_dtype);
}

Bytes TensorSource::read_packed(const std::string& fqn, const Box&) { throw InternalError("no packed tensor: " + fqn); }

std::optional<TensorStorageMetadata> as_packed_bytes(const TensorStorageMetadata& stored) {
  if (stored.properties.dtype != DType::kUnknown || stored.storage.size() != 1 || stored.storage[0].payload_offset == 0) return {};
  TensorStorageMetadata bytes = stored;
  bytes.properties.dtype = DType::kUInt8;
  bytes.size = {static_cast<std::int64_t>(stored.storage[0].length)};
  bytes.chunks = {Box::whole(bytes.size)};
  return bytes;
}

std::string TensorSource::why_not_convertible(const std::string& fqn) {
  const std::string reason = why_unreadable(fqn);
  if (!reason.empty() || !std::holds_alternative<BytesStorageMetadata>(*metadata().find(fqn))) return reason;
  const SavedValue value = read_value(fqn);
  return value.is_opaque() ? printable(value.why) : "";
}

void TensorSource::require_readable(const std::string& fqn) const {
  if (const std::string reason = why_unreadable(fqn); !reason.empty())
    throw Error(ErrorCode::kUnsupported, fmt::format("\"{}\": {}", printable(fqn), reason));
}

std::unique_ptr<TensorSource> open_tensor_source(const std::string& place, CheckParts check) {
  if (const auto files = tensor_files_at(place); !files.empty()) return open_tensor_files(place, files);
  auto store = open_store(place);
  int world_size = 0;
  if (auto records = records_of_parts(*store, world_size); !records.empty())
    return std::make_unique<PartsSource>(join(std::move(store), std::move(records), world_size), check);
  return std::make_unique<CheckpointSource>(open_checkpoint(place), check);
}

std::vector<TensorFile> tensor_files_at(const std::string& place) {
  const auto named = file_at(place);
  const std::string index = named ? named->filename().string() : "";
  if (named && !ends_with(index, kSafetensorsIndexEnd)) return {{*named, {}}};
  std::error_code error;
  const auto path = local_path(place);
  const bool is_directory = path && std::filesystem::is_directory(*path, error);
  if (!named && (!is_directory || std::filesystem::exists(*path / kCommitRecordName, error))) return {};
  if (!named && is_torch_checkpointing(*open_store(std::filesystem::absolute(*path).string()))) return {{*path, {}}};
  const std::filesystem::path directory = named ? std::filesystem::absolute(*named).parent_path() : *path;
  std::vector<TensorFile> files;
  for (auto& [name, promised] : find_safetensors_files(*open_store(std::filesystem::absolute(directory).string()), index))
    files.push_back({directory / name, std::move(promised)});
  // A save that ended meanwhile made a checkpoint, and the list may lack some of its files.
  if (!named && std::filesystem::exists(*path / kCommitRecordName, error)) return {};
  return files;
}

std::unique_ptr<TensorSource> open_tensor_files(const std::string& place, const std::vector<TensorFile>& files) {
  std::error_code error;
  if (std::filesystem::is_directory(files.front().path, error))
    return std::make_unique<SavedFilesSource>(files.front().path, false);
  if (files.size() > 1 || is_safetensors(MappedFile(files.front().path.string()).bytes())) {
    SafetensorsFiles chosen;
    for (const auto& [path, promised] : files) chosen[path.filename().string()] = promised;
    const auto store = open_store(std::filesystem::absolute(files.front().path).parent_path().string());
    return std::make_unique<SafetensorsSource>(printable(place), OpenedCheckpoint{store, safetensors_metadata(*store, chosen)});
  }
  return std::make_unique<SavedFilesSource>(files.front().path, true);
}

std::vector<VerifyFault> verify_tensor_files(const std::string& place, const std::vector<TensorFile>& files,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::vector<VerifyFault> faults, unchecked;
  const auto add = [&](const std::string& object, std::uint64_t offset, const std::string& what, bool is_unchecked) {
    (is_unchecked ? unchecked : faults).push_back({object, offset, "", what, is_unchecked});
  };
  std::uint64_t done = 0;
  const auto check_archive = [&](const std::string& object, const MappedFile& file, std::uint64_t all) {
    const ZipReader zip(file.bytes(), printable(object));
    if (!zip.has_checksums()) add(object, 0, "its entries: the archive has no checksums", true);
    const std::uint64_t before = done;
    for (const auto& entry : zip.entries()) {
      const std::uint64_t offset = zip.data_offset(entry);
      if (entry.crc32 && crc32(0, {file.begin() + offset, entry.size_bytes}) != *entry.crc32)
        add(object, offset, fmt::format("the checksum of {} does not match", printable(entry.name)), false);
      progress(done += entry.size_bytes, all);
    }
    progress(done = before + file.size(), all);
  };
  try {
    std::error_code error;
    if (std::filesystem::is_directory(files.front().path, error)) {
      const std::vector<FileInfo> items = open_tensor_files(place, files)->metadata().files;
      std::uint64_t all = 0;
      for (const FileInfo& item : items) all += item.length.value_or(0);
      for (const FileInfo& item : items) {
        if (!item.length) continue;
        const MappedFile file((files.front().path / item.name).string());
        if (file.bytes().view().substr(0, 2) == "PK")
          check_archive(item.name, file, all);
        else
          add(item.name, 0, "its content: the format has no checksums", true);
      }
    } else if (const MappedFile file(files.front().path.string()); files.size() == 1 && !is_safetensors(file.bytes())) {
      check_archive(place, file, file.size());
    }
    if (!faults.empty()) return faults;
    const auto source = open_tensor_files(place, files);
    if (source->writer() == std::string_view("safetensors"))
      add(place, 0, "the elements: the safetensors format has no checksums", true);
    for (const auto& [fqn, entry] : source->metadata().state_dict_metadata)
      if (const std::string why = source->why_unreadable(fqn); !why.empty()) add(place, 0, printable(fqn) + ": " + why, true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    add(place, 0, error.what(), error.code() == ErrorCode::kUnsupported);
  }
  faults.insert(faults.end(), unchecked.begin(), unchecked.end());
  return faults;
}

}  // namespace cairn::tools
