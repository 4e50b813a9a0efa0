#include <cairn/tools/tensor_source.hpp>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <cairn/base/digest.hpp>
#include <cairn/planning/global_plan.hpp>
#include <cairn/planning/resharding.hpp>
#include <cairn/state/pickle/torch_archive.hpp>
#include <cairn/state/planner.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/read_part.hpp>
#include <cairn/tools/commands.hpp>

namespace cairn::tools {
namespace {

class OneValue : public ReadyPlan {
 public:
  void load_bytes(const LoadPlan&, const ReadItem&, Bytes read) override { bytes = std::move(read); }

  Bytes bytes;
};

class CheckpointSource final : public TensorSource {
 public:
  CheckpointSource(const std::string& url, CheckParts check)
      : opened_(open_checkpoint(url)), check_(check), unchecked_(without_checks()) {
    for (CheckpointReader* reader : {&checked_, &unchecked_}) {
      reader->reset(url);
      StorageContext context;
      context.checkpoint_id = url;
      reader->set_up_storage_reader(opened_.metadata, context);
    }
  }

  const Metadata& metadata() const override { return opened_.metadata; }
  std::string name() const override { return printable(opened_.store->url()); }
  const char* writer() const override { return written_by_cairn(opened_.metadata) ? "Cairn" : "PyTorch"; }
  std::string identity() const override {
    Bytes record(opened_.store->size_bytes(kCommitRecordName), '\0');
    opened_.store->read(kCommitRecordName, {{0, {record.data(), record.size()}}});
    return to_hex(sha256(record));
  }

  torch::Tensor read(const std::string& fqn, const Box& box) override {
    const auto& stored = std::get<TensorStorageMetadata>(*opened_.metadata.find(fqn));
    require_chunks(fqn, stored, box);
    require_readable(fqn);
    CheckpointReader* reader = &checked_;
    if (is_archived(stored) && box != Box::whole(stored.size)) {
      reader = &unchecked_;
      if (check_ == CheckParts::kYes)
        for (const std::uint32_t chunk : ChunkIndex(stored.chunks).find(box)) check_archive(fqn, stored, chunk);
    }
    return read_part(*reader, fqn, stored, box);
  }

  Bytes read_bytes(const std::string& fqn) override {
    OneValue planner;
    LoadPlan plan;
    ReadItem item;
    item.type = LoadItemType::kByteIO;
    item.dest_name = item.storage_name = plan.names.intern(fqn);
    plan.items.push_back(std::move(item));
    checked_.read_data(plan, planner).get();
    return std::move(planner.bytes);
  }

  Value read_value(const std::string& fqn) override {
    try {
      return deserialize_leaf(read_bytes(fqn));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      throw Error(error.code(), fmt::format("\"{}\": {}", printable(fqn), error.what()));
    }
  }

 private:
  static CheckpointReaderOptions without_checks() {
    CheckpointReaderOptions options;
    options.verify = false;
    return options;
  }

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
    return !opened_.metadata.commit && !stored.storage.empty() && stored.storage.front().payload_offset == 0;
  }

  // Verifies a whole chunk of a PyTorch checkpoint against its checksum, once.
  void check_archive(const std::string& fqn, const TensorStorageMetadata& stored, std::uint32_t chunk) {
    const StorageInfo& storage = stored.storage[chunk];
    if (!checked_archives_.emplace(storage.file, storage.offset).second) return;
    const std::string& file = opened_.metadata.files.at(storage.file).name;
    const std::string what = fmt::format("\"{}\" in {} at offset {}", fqn, file, storage.offset);
    const PlainItem item = undo_transforms(
        storage, stored.properties.dtype, &stored.chunks[chunk].sizes,
        [&](std::uint64_t offset, MutableByteSpan to) {
          opened_.store->read(file, {{storage.offset + offset, to}});
        },
        what);
    const TorchArchive archive(item.size_bytes, item.read_at, what);
    const TorchArchive::Storage elements = read_archived_tensor(archive).storage;
    constexpr std::uint64_t kBlockBytes = 4u << 20;
    Bytes block;
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < elements.size_bytes; at += block.size()) {
      block.resize(std::min(kBlockBytes, elements.size_bytes - at));
      item.read_at(elements.offset + at, {block.data(), block.size()});
      crc = crc32(crc, block);
    }
    if (crc != elements.crc32)
      throw Error(ErrorCode::kCorrupt, archive.what() + " is damaged: the checksum of its elements does not match");
  }

  OpenedCheckpoint opened_;
  const CheckParts check_;
  CheckpointReader checked_;
  CheckpointReader unchecked_;
  std::set<std::pair<std::uint32_t, std::uint64_t>> checked_archives_;
  std::map<std::string, std::optional<CoverageFault>> first_faults_;  // of each tensor read so far; nothing if there is no fault
};

}  // namespace

std::string TensorSource::why_unreadable(const std::string& fqn) const {
  const auto* stored = std::get_if<TensorStorageMetadata>(metadata().find(fqn));
  if (stored == nullptr) return "";
  for (const StorageInfo& storage : stored->storage)
    if (const std::string reason = why_not_undone(storage.transforms); !reason.empty()) return printable(reason);
  if (carrier_type_of(stored->properties.dtype)) return "";
  return fmt::format("its type is torch.{}, which this version of Cairn does not know", stored->unknown_dtype);
}

void TensorSource::require_readable(const std::string& fqn) const {
  if (const std::string reason = why_unreadable(fqn); !reason.empty())
    throw Error(ErrorCode::kUnsupported, fmt::format("\"{}\": {}", printable(fqn), reason));
}

std::unique_ptr<TensorSource> open_tensor_source(const std::string& place, CheckParts check) {
  if (const auto files = tensor_files_at(place); !files.empty()) return open_tensor_files(place, files);
  return std::make_unique<CheckpointSource>(place, check);
}

}  // namespace cairn::tools
