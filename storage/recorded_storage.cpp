#include <cairn/storage/recorded_storage.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// Limit on the names listed in an error text.
constexpr std::size_t kNamesListedMax = 20;

[[noreturn]] void mismatch(int rank, const std::string& what) {
  throw Error(ErrorCode::kMismatch, "cannot record what rank " + std::to_string(rank) + " wrote: " + what);
}

StorageInfo transformed(StorageInfo info, const std::vector<std::string>& transforms) {
  if (transforms.empty()) return info;
  info.payload_offset = 0;  // the elements are nowhere in the file
  info.transforms = transforms;
  return info;
}

struct Entry {
  Metadata::Entry* metadata = nullptr;
  std::size_t first_chunk = 0;       // among the chunks of all entries
  std::vector<std::uint32_t> order;  // of several chunks: indices sorted by box; built when first needed
};

class StorageRecorder {
 public:
  StorageRecorder(Metadata& metadata, const std::vector<std::string>& of_tensors, const std::vector<std::string>& of_bytes)
      : metadata_(metadata), of_tensors_(of_tensors), of_bytes_(of_bytes) {
    metadata.files.clear();
    metadata.names();  // for the index: a planner may have changed names
    entries_.resize(metadata.state_dict_metadata.size());
    std::size_t chunks = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Metadata::Entry& value = metadata.state_dict_metadata[i].second;
      entries_[i].metadata = &value;
      entries_[i].first_chunk = chunks;
      if (auto* tensor = std::get_if<TensorStorageMetadata>(&value)) {
        // The planner's metadata may come from a user's class with locations of its own.
        tensor->storage.assign(tensor->chunks.size(), {});
        chunks += tensor->chunks.size();
      } else {
        std::get<BytesStorageMetadata>(value).storage.reset();
      }
    }
    recorded_.resize(chunks);
  }

  void add(int rank, const PlannedFiles& planned, const WriteResults& results, const PlannedName& name_of) {
    if (results.files.size() != planned.files.size())
      mismatch(rank, "it reports " + std::to_string(results.files.size()) + " files, its plan has " +
                         std::to_string(planned.files.size()) + ": do all ranks use the same options?");
    for (std::size_t i = 0; i < planned.files.size(); ++i) {
      const FileResult& written = results.files[i];
      const FileLayout& layout = planned.files[i];
      // Offsets come from the plan, so the report must fit it in every respect that can be
      // compared.
      if (const std::string name = name_of(static_cast<std::size_t>(rank), i); written.name != name)
        mismatch(rank, "file " + std::to_string(i) + " is called " + written.name + ", not " + name);
      const std::vector<PlacedItem> unsized = place_unsized(layout, written.bytes_item_lengths);
      const std::uint64_t content_bytes = unsized.empty() ? layout.tensors_end : unsized.back().offset + unsized.back().length;
      if (written.length_bytes < content_bytes || written.length_bytes - content_bytes != written.trailer_length_bytes)
        mismatch(rank, written.name + " has " + std::to_string(written.length_bytes) + " bytes, its plan and trailer make " +
                           std::to_string(content_bytes + written.trailer_length_bytes) +
                           ": do all ranks run the same version of Cairn?");
      StorageInfo info;
      info.file = static_cast<std::uint32_t>(metadata_.files.size());
      metadata_.files.push_back(
          {written.name, written.length_bytes, written.crc32, written.trailer_length_bytes, written.written_by});
      for (const PlacedTensor& placed : layout.tensors) {
        const PlannedFiles::Item& item = planned.items[placed.item];
        info.offset = placed.offset;
        info.length = placed.layout.total_bytes();
        info.payload_offset = placed.payload_offset();
        record_tensor(rank, planned, item, info);
      }
      for (const PlacedItem& placed : unsized) {
        const PlannedFiles::Item& item = planned.items[placed.item];
        info.offset = info.payload_offset = placed.offset;
        info.length = placed.length;
        if (item.is_bytes)
          record_bytes(rank, planned, item, info);
        else
          record_tensor(rank, planned, item, info);
      }
    }
  }

  void finish() {
    std::string missing;
    std::size_t count = 0;
    const auto note = [&](const std::string& what) {
      if (++count <= kNamesListedMax) missing += (missing.empty() ? "" : ", ") + what;
    };
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto& [fqn, value] = metadata_.state_dict_metadata[i];
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&value)) {
        for (std::size_t chunk = 0; chunk < tensor->chunks.size(); ++chunk)
          if (!recorded_[entries_[i].first_chunk + chunk]) note("\"" + fqn + "\" " + to_string(tensor->chunks[chunk]));
      } else if (!std::get<BytesStorageMetadata>(value).storage) {
        note("\"" + fqn + "\"");
      }
    }
    if (count == 0) return;
    if (count > kNamesListedMax) missing += " and " + std::to_string(count - kNamesListedMax) + " more";
    throw Error(ErrorCode::kMismatch,
                "cannot finish the save: no rank wrote " + missing + ", which the planner put into the metadata");
  }

 private:
  Entry& find(int rank, const std::string& fqn, NameId likely, bool is_bytes) {
    const auto found = metadata_.position_of(fqn, likely);
    if (!found) mismatch(rank, "\"" + fqn + "\" is not in the metadata that the planner made");
    Entry& entry = entries_[*found];
    if (std::holds_alternative<BytesStorageMetadata>(*entry.metadata) != is_bytes)
      mismatch(rank, "\"" + fqn + "\" is a " + (is_bytes ? "bytes object, but a tensor" : "tensor, but a bytes object") +
                         " in the metadata that the planner made");
    return entry;
  }

  // Each chunk of the metadata gets exactly one location. A chunk that is written twice or never is
  // a planner's mistake, and a load would find it too late.
  void record_tensor(int rank, const PlannedFiles& planned, const PlannedFiles::Item& item, const StorageInfo& info) {
    const std::string& fqn = planned.names[item.name];
    const Box& chunk = item.chunk;
    Entry& entry = find(rank, fqn, item.name, false);
    auto& tensor = std::get<TensorStorageMetadata>(*entry.metadata);
    const auto& chunks = tensor.chunks;
    if (chunks.size() > 1 && entry.order.empty()) {
      entry.order.resize(chunks.size());
      std::iota(entry.order.begin(), entry.order.end(), 0);
      std::sort(entry.order.begin(), entry.order.end(), [&](std::uint32_t a, std::uint32_t b) { return chunks[a] < chunks[b]; });
    }
    constexpr std::uint32_t kOnly = 0;
    const std::uint32_t* const end = chunks.size() > 1 ? entry.order.data() + chunks.size() : &kOnly + chunks.size();
    const std::uint32_t* at =
        std::lower_bound(end - chunks.size(), end, chunk, [&](std::uint32_t index, const Box& box) { return chunks[index] < box; });
    bool known = false;
    for (; at != end && chunks[*at] == chunk; ++at) {
      known = true;
      // Empty chunks may be equal, so the search goes on to one that is free.
      if (recorded_[entry.first_chunk + *at]) continue;
      recorded_[entry.first_chunk + *at] = true;
      tensor.storage[*at] = transformed(info, of_tensors_);
      return;
    }
    mismatch(rank, "chunk " + to_string(chunk) + " of \"" + fqn + "\" " +
                       (known ? "was written more than once" : "is not in the metadata that the planner made"));
  }

  void record_bytes(int rank, const PlannedFiles& planned, const PlannedFiles::Item& item, const StorageInfo& info) {
    const std::string& fqn = planned.names[item.name];
    auto& bytes = std::get<BytesStorageMetadata>(*find(rank, fqn, item.name, true).metadata);
    if (bytes.storage) mismatch(rank, "\"" + fqn + "\" was written more than once");
    bytes.storage = transformed(info, of_bytes_);
  }

  Metadata& metadata_;
  const std::vector<std::string>& of_tensors_;
  const std::vector<std::string>& of_bytes_;
  std::vector<Entry> entries_;  // in the order of the metadata
  std::vector<bool> recorded_;  // the chunks of all entries
};

}  // namespace

// Keeps what the coordinator needs at the end of the save, and not the plans of all ranks, which
// are larger.
PlannedFiles keep_plan(const SavePlan& plan, std::vector<FileLayout> files) {
  PlannedFiles kept;
  kept.names = plan.names;
  kept.items.reserve(plan.items.size());
  for (const WriteItem& item : plan.items) kept.items.push_back({item.name, item.type == WriteItemType::kByteIO, item.chunk});
  kept.files = std::move(files);
  // As large as all names; only the rank writes it. An assignment would keep the memory.
  for (FileLayout& file : kept.files) std::string().swap(file.head);
  return kept;
}

void record_storage(Metadata& metadata, const std::vector<PlannedFiles>& planned, const std::vector<WriteResults>& results,
                    const PlannedName& name_of, const std::vector<std::string>& of_tensors,
                    const std::vector<std::string>& of_bytes) {
  if (results.size() != planned.size())
    throw Error(ErrorCode::kPrecondition, "cannot finish the save: " + std::to_string(results.size()) + " ranks reported, but " +
                                              std::to_string(planned.size()) +
                                              " plans went through prepare_global_plan: it must run in every save");
  StorageRecorder recorder(metadata, of_tensors, of_bytes);
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    recorder.add(static_cast<int>(rank), planned[rank], results[rank], name_of);
  recorder.finish();
}

}  // namespace cairn
