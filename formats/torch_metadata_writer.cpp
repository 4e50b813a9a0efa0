#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include <cairn/formats/pickler.hpp>
#include <cairn/formats/torch_metadata.hpp>

namespace cairn {
namespace {

constexpr int kProtocol = 4;
constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";
constexpr const char* kDcpVersion = "1.0.0";

}  // namespace

// Writes the calls that CPython's pickler would write for DCP's objects. Python needs no Cairn to
// read them.
class MetadataPickler {
 public:
  MetadataPickler(const Metadata& metadata, const std::string& save_id, TorchPickle& made)
      : metadata_(metadata), save_id_(save_id), made_(made) {}

  void run() && {
    begin_object(kMetadataModule, "Metadata");
    // The fields of DCP's data class, in its order.
    out_.text("state_dict_metadata");
    entries();
    out_.text("planner_data");
    planner_data();
    out_.text("storage_data");
    storage_data();
    out_.text("storage_meta");
    storage_meta();
    out_.text("version");
    out_.text(metadata_.version.empty() ? kDcpVersion : metadata_.version);
    end_object();
    made_.bytes_ = std::move(out_).finish();
  }

 private:
  Pickler::Slot replaceable(std::string_view text, std::size_t what) {
    const std::size_t begin = out_.size();
    out_.text_apart(text);
    made_.texts_.push_back({begin, out_.size(), what});
    return out_.remember();
  }

  // Begins an object of a class without constructor arguments. Its fields follow as text and value,
  // until `end_object`.
  void begin_object(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.tuple(0);
    out_.new_object();
    out_.empty_dict();
    out_.mark();
  }

  void end_object() {
    out_.set_items();
    out_.build();
  }

  // Writes a torch.Size. Equal ones share one object, which is not observable because they are
  // immutable.
  void size(const Extents& extents) {
    if (const auto known = sizes_.find(extents); known != sizes_.end()) return out_.recall(known->second);
    out_.global("torch", "Size");
    if (extents.size() > 3) out_.mark();
    for (const auto extent : extents) out_.integer(extent);
    out_.tuple(extents.size());
    out_.tuple(1);
    out_.reduce();
    sizes_.emplace(extents, out_.remember());
  }

  // In the form of DCP's __getstate__: a tuple of the fields.
  void properties(const TensorProperties& tensor) {
    out_.global(kMetadataModule, "TensorProperties");
    out_.tuple(0);
    out_.new_object();
    out_.mark();
    out_.global("torch", to_string(tensor.dtype));
    out_.global("torch.serialization", "_get_layout");
    out_.text("torch.strided");
    out_.tuple(1);
    out_.reduce();
    out_.boolean(tensor.requires_grad);
    out_.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
    out_.integer(static_cast<std::int64_t>(tensor.memory_format));
    out_.tuple(1);
    out_.reduce();
    out_.boolean(tensor.pin_memory);
    out_.tuple(5);
    out_.build();
  }

  void entries() {
    out_.empty_dict();
    out_.mark();
    for (const auto& [fqn, entry] : metadata_.state_dict_metadata) {
      names_.push_back(out_.text(fqn));
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
        const TensorProperties& p = tensor->properties;
        out_.phrase(tensors_[{p.dtype, p.memory_format, p.requires_grad, p.pin_memory}], [&] {
          begin_object(kMetadataModule, "TensorStorageMetadata");
          out_.text("properties");
          properties(p);
          out_.text("size");
        });
        size(tensor->size);
        chunks(tensor->chunks);
        end_object();
      } else {
        out_.global(kMetadataModule, "BytesStorageMetadata");
        out_.tuple(0);
        out_.new_object();
      }
    }
    out_.set_items();
  }

  void chunks(const std::vector<Box>& boxes) {
    out_.phrase(phrases_[kChunks], [&] { out_.text("chunks"); });
    out_.empty_list();
    out_.mark();
    for (const auto& box : boxes) {
      out_.phrase(phrases_[kOffsets], [&] {
        begin_object(kMetadataModule, "ChunkStorageMetadata");
        out_.text("offsets");
      });
      size(box.offsets);
      out_.phrase(phrases_[kSizes], [&] { out_.text("sizes"); });
      size(box.sizes);
      end_object();
    }
    out_.appends();
  }

  void planner_data() {
    out_.empty_dict();
    out_.mark();
    for (std::size_t i = 0; i < metadata_.planner_data.size(); ++i) {
      const auto& [fqn, path] = metadata_.planner_data[i];
      const bool is_entry = i < names_.size() && metadata_.state_dict_metadata[i].first == fqn;
      is_entry ? out_.recall(names_[i]) : static_cast<void>(out_.text(fqn));
      out_.mark();
      for (const auto& element : path) {
        if (const auto* key = std::get_if<std::string>(&element)) {
          out_.text(*key);
        } else {
          out_.integer(std::get<std::int64_t>(element));
        }
      }
      out_.tuple_from_mark();
    }
    out_.set_items();
  }

  // Writes the key and value that locate one bytes object or chunk.
  void location(Pickler::Slot name, const Box* chunk, std::size_t index, const StorageInfo& info) {
    out_.phrase(phrases_[kFqn], [&] {
      begin_object(kMetadataModule, "MetadataIndex");
      out_.text("fqn");
    });
    out_.recall(name);
    // PyTorch leaves the index out of comparisons. It only speeds up its own look-up.
    out_.phrase(phrases_[kIndex], [&] { out_.text("index"); });
    if (chunk == nullptr) {
      out_.none();
    } else {
      out_.integer(static_cast<std::int64_t>(index));
      out_.phrase(phrases_[kOffset], [&] { out_.text("offset"); });
      size(chunk->offsets);
    }
    end_object();

    out_.phrase(files_[info.file], [&] {
      begin_object(kFilesystemModule, "_StorageInfo");
      out_.text("relative_path");
      if (auto& slot = file_slots_[info.file])
        out_.recall(*slot);
      else
        slot = replaceable(metadata_.files[info.file].name, info.file);
      out_.text("offset");
    });
    out_.integer(static_cast<std::int64_t>(info.offset));
    out_.phrase(phrases_[kLength], [&] { out_.text("length"); });
    out_.integer(static_cast<std::int64_t>(info.length));
    // Written only if needed, because older versions of PyTorch have no such field.
    if (!info.transforms.empty()) {
      out_.text("transform_descriptors");
      out_.empty_list();
      out_.mark();
      for (const auto& transform : info.transforms) out_.text(transform);
      out_.appends();
    }
    end_object();
  }

  void storage_data() {
    out_.empty_dict();
    out_.mark();
    for (std::size_t at = 0; at < names_.size(); ++at) {
      const Metadata::Entry& entry = metadata_.state_dict_metadata[at].second;
      if (const auto* bytes = std::get_if<BytesStorageMetadata>(&entry)) {
        if (bytes->storage) location(names_[at], nullptr, 0, *bytes->storage);
        continue;
      }
      const auto& tensor = std::get<TensorStorageMetadata>(entry);
      // PyTorch finds a chunk by its offset. An empty chunk may have the same offset as another one
      // and must not hide it, so empty chunks come first.
      for (const bool are_empty : {true, false}) {
        for (std::size_t i = 0; i < tensor.storage.size(); ++i)
          if (tensor.chunks[i].empty() == are_empty) location(names_[at], &tensor.chunks[i], i, tensor.storage[i]);
      }
    }
    out_.set_items();
  }

  void storage_meta() {
    begin_object(kMetadataModule, "StorageMeta");
    out_.text("checkpoint_id");
    if (metadata_.checkpoint_id.empty()) {
      out_.none();
    } else {
      replaceable(metadata_.checkpoint_id, TorchPickle::kCheckpointId);
    }
    out_.text("save_id");
    replaceable(save_id_, TorchPickle::kSaveId);
    out_.text("load_id");
    out_.none();
    out_.text("modules");
    out_.empty_list();
    end_object();
  }

  const Metadata& metadata_;
  const std::string& save_id_;
  TorchPickle& made_;
  Pickler out_{kProtocol};
  std::vector<Pickler::Slot> names_;  // of the entries, in their order
  // Phrases of Pickler, up to what varies: the size of a tensor, by its other properties; an offset
  // in a file; and each of these fields.
  std::map<std::tuple<DType, MemoryFormat, bool, bool>, Bytes> tensors_;
  std::vector<Bytes> files_{metadata_.files.size()};
  std::vector<std::optional<Pickler::Slot>> file_slots_ = std::vector<std::optional<Pickler::Slot>>(metadata_.files.size());
  enum Field { kChunks, kOffsets, kSizes, kFqn, kIndex, kOffset, kLength, kFields };
  Bytes phrases_[kFields];
  std::map<Extents, Pickler::Slot> sizes_;
};

TorchPickle::TorchPickle(const Metadata& metadata, const std::string& save_id) { MetadataPickler(metadata, save_id, *this).run(); }

void TorchPickle::append_to(Bytes& out, const Metadata& metadata, const std::string& save_id) const {
  std::size_t at = 0;
  for (const auto& [begin, end, what] : texts_) {
    out.append(bytes_, at, begin - at);
    const std::string& text = what == kSaveId         ? save_id
                              : what == kCheckpointId ? metadata.checkpoint_id
                                                      : metadata.files[what].name;
    Pickler::append_text(out, text, kProtocol);
    at = end;
  }
  out.append(bytes_, at);
}

Bytes pickle_torch_metadata(const Metadata& metadata, const std::string& save_id) {
  Bytes pickle;
  TorchPickle(metadata, save_id).append_to(pickle, metadata, save_id);
  return pickle;
}

}  // namespace cairn
