// A checkpoint in memory that a test corrupts object by object, and the outcome of loading it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/tests/support/torch.hpp>

#include <cairn/formats/zip_reader.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {

// A part of an object that belongs to one piece of the format.
struct FormatRegion {
  std::string name;  // "section", "prefix of w", …
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_payload = false;  // tensor elements; all other regions control how these are read
};

inline Bytes flipped(Bytes bytes, std::size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

// Returns an archive of Cairn's with zeros for the checksums of all entries, or of the entry whose
// name ends in `only`, in the directory and behind the data.
inline Bytes without_checksums(Bytes archive, const std::string& only = "") {
  const Bytes before = archive;
  const ZipReader zip(before, "an archive");
  for (const ZipReader::Entry& entry : zip.entries()) {
    if (!ends_with(entry.name, only) || entry.size_bytes == 0) continue;
    archive.replace(zip.data_offset(entry) + entry.size_bytes + 4, 4, 4, '\0');
    archive.replace(archive.rfind(entry.name) - 46 + 16, 4, 4, '\0');
  }
  return archive;
}

class DamagedCheckpoint {
 public:
  // The outcome of loading the checkpoint in its current state.
  struct Outcome {
    Thrown thrown;       // no error: the load succeeded
    bool intact = true;  // after a successful load: every value is the saved one
    // Returns whether this outcome is acceptable after damage to `object`: no wrong value and no
    // exception of another kind. The error must name the object, unless it is the commit record. A
    // damaged one may still be readable and describe another checkpoint than the caller expects.
    bool is_sound(const ObjectName& object) const {
      if (!thrown.is_error) return intact;
      const bool is_fit = is_refusal(thrown) || thrown.code == ErrorCode::kNotFound || thrown.code == ErrorCode::kMismatch;
      return is_fit && (object == kCommitRecordName || thrown.says(object));
    }
  };

  // Copies the checkpoint at `source` into the memory store `memory`. Loads at most `each_max`
  // tensors and `each_max` bytes objects.
  DamagedCheckpoint(std::string memory, const std::string& source, std::size_t each_max = SIZE_MAX)
      : memory_(std::move(memory)), url_("mem://" + memory_ + "/run/step") {
    const auto from = open_store(source);
    forget_memory(memory_);
    store_ = open_store(url_);
    store_->create_root();
    for (const std::string& name : names_of(from->list())) {
      if (name != kCommitRecordName && name.find(".distcp") == std::string::npos) continue;
      objects_[name] = get_object(*from, name);
      put_object(*store_, name, objects_[name]);
    }
    metadata_ = read_metadata(*store_);
    std::size_t tensors = 0;
    std::size_t others = 0;
    for (const auto& [fqn, entry] : metadata_.state_dict_metadata) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      if (++(tensor ? tensors : others) > each_max) continue;
      if (tensor)
        target_[fqn] = torch::empty(array_of(tensor->size), *scalar_type_of(tensor->properties.dtype));
      else
        target_[fqn] = Value();
    }
    load();
    for (const auto& [fqn, value] : target_) expected_[fqn] = value.is_tensor() ? Value(value.tensor().clone()) : value;
  }
  ~DamagedCheckpoint() { forget_memory(memory_); }
  DamagedCheckpoint(const DamagedCheckpoint&) = delete;
  DamagedCheckpoint& operator=(const DamagedCheckpoint&) = delete;

  Store& store() { return *store_; }
  const Metadata& metadata() const { return metadata_; }
  const std::map<ObjectName, Bytes>& objects() const { return objects_; }  // undamaged
  std::vector<ObjectName> data_files() const {
    std::vector<ObjectName> names;
    for (const auto& [name, bytes] : objects_)
      if (name != kCommitRecordName) names.push_back(name);
    return names;
  }

  void spoil(const ObjectName& name, const Bytes& bytes) { replace_object(*store_, name, bytes); }
  void restore(const ObjectName& name) { spoil(name, objects_.at(name)); }

  Outcome outcome() {
    Outcome outcome;
    for (auto& [fqn, value] : target_) {
      if (value.is_tensor())
        value.tensor().fill_(1);
      else
        value = Value();
    }
    outcome.thrown = thrown_by([&] { load(); });
    if (outcome.thrown.is_error) return outcome;
    for (const auto& [fqn, value] : expected_) {
      const Value& found = target_.at(fqn);
      outcome.intact = outcome.intact && (value.is_tensor() ? found.is_tensor() && value.tensor().equal(found.tensor())
                                                            : serialize_leaf(value) == serialize_leaf(found));
    }
    return outcome;
  }
  // Loads with `bytes` as the content of object `name`, then restores the object.
  Outcome outcome_of(const ObjectName& name, const Bytes& bytes) {
    spoil(name, bytes);
    Outcome found = outcome();
    restore(name);
    return found;
  }
  // Returns the faults that `verify_checkpoint` finds. An error counts as one fault.
  std::vector<VerifyFault> faults() {
    std::vector<VerifyFault> found;
    const Thrown thrown = thrown_by([&] { found = verify_checkpoint(*store_, 1); });
    if (thrown.is_error) found.push_back({"", 0, "", thrown.what});
    return found;
  }

  // Returns the regions of an object in order. They cover the whole object, except for items that
  // are not loaded.
  std::vector<FormatRegion> regions(const ObjectName& name) const {
    const Bytes& bytes = objects_.at(name);
    std::vector<FormatRegion> found;
    std::size_t at = 0;
    const auto until = [&](const std::string& what, std::uint64_t end, bool is_payload = false) {
      if (end > at) found.push_back({what, at, static_cast<std::size_t>(end), is_payload});
      at = static_cast<std::size_t>(end);
    };
    if (name == kCommitRecordName) {
      if (const auto footer = parse_commit_footer(bytes)) {
        until("pickle", footer->section_offset);
        until("section", bytes.size() - kCommitFooterBytes);
        until("footer", bytes.size());
      } else {
        until("pickle", bytes.size());
      }
    } else if (metadata_.commit) {
      std::map<std::tuple<std::uint64_t, std::uint64_t, std::string>, std::pair<std::uint64_t, std::uint64_t>>
          payloads;  // by place
      for (const auto& [fqn, entry] : metadata_.state_dict_metadata) {
        const auto add = [&, &key = fqn](const StorageInfo& info, std::uint64_t payload_bytes) {
          if (metadata_.files.at(info.file).name == name)
            payloads[{info.offset, info.offset + info.length, key}] = {std::max(info.offset, info.payload_offset), payload_bytes};
        };
        if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry))
          for (std::size_t i = 0; i < tensor->storage.size(); ++i)
            add(tensor->storage[i], tensor->storage[i].transforms.empty()
                                        ? volume(tensor->chunks[i].sizes) * element_size(tensor->properties.dtype)
                                        : tensor->storage[i].length);
        else if (const auto& object = std::get<BytesStorageMetadata>(entry); object.storage)
          add(*object.storage, object.storage->length);
      }
      for (const auto& [place, payload] : payloads) {
        const auto& [begin, end, fqn] = place;
        until("before the payload of " + fqn, payload.first);
        until("payload of " + fqn, payload.first + payload.second, true);
        until("after the payload of " + fqn, end);
      }
      until("body of the trailer", bytes.size() - kTrailerFooterBytes);
      until("footer of the trailer", bytes.size());
    } else {
      for (const auto& [begin, length] : archives_of(name)) {
        at = begin;
        const ZipReader zip(ByteSpan(bytes.data() + begin, length), name);
        std::map<std::uint64_t, const ZipReader::Entry*> entries;
        for (const ZipReader::Entry& entry : zip.entries()) entries[zip.data_offset(entry)] = &entry;
        for (const auto& [data, entry] : entries) {
          until("before " + entry->name, begin + data);
          until(entry->name, begin + data + entry->size_bytes, entry->name.find("/data/") != std::string::npos);
        }
        until("directory and end records", begin + length);
      }
    }
    return found;
  }

 private:
  // Returns the offset and length of each loaded item in one of PyTorch's files.
  std::map<std::uint64_t, std::uint64_t> archives_of(const ObjectName& name) const {
    std::map<std::uint64_t, std::uint64_t> found;
    const auto add = [&](const StorageInfo& info) {
      if (info.length > 0 && metadata_.files.at(info.file).name == name) found[info.offset] = info.length;
    };
    for (const auto& [fqn, entry] : metadata_.state_dict_metadata) {
      if (!target_.contains(fqn)) continue;
      if (const auto* tensor = std::get_if<TensorStorageMetadata>(&entry))
        std::for_each(tensor->storage.begin(), tensor->storage.end(), add);
      else if (const auto& bytes = std::get<BytesStorageMetadata>(entry); bytes.storage)
        add(*bytes.storage);
    }
    return found;
  }

  void load() {
    LoadPlannerOptions options;
    options.flatten_state_dict = false;
    DefaultLoadPlanner planner(options);
    load_locally(url_, {{&target_, &planner, &reader_}});
  }

  std::string memory_;
  std::string url_;
  std::shared_ptr<Store> store_;
  std::map<ObjectName, Bytes> objects_;
  Metadata metadata_;
  StateDict target_;
  StateDict expected_;
  CheckpointReader reader_;
};

}  // namespace cairn::testing
