// A checkpoint in memory that a test corrupts object by object, and the outcome of loading it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/tests/support/torch.hpp>

#include <cairn/formats/zip_reader.hpp>
#include <cairn/state/checkpoint_writer.hpp>
#include <cairn/state/tensor_types.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/verify_checkpoint.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/local_protocol.hpp>
#include <cairn/tests/support/thrown.hpp>

namespace cairn::testing {

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
    const Metadata metadata = read_metadata(*store_);
    std::size_t tensors = 0;
    std::size_t others = 0;
    for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
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

  const std::map<ObjectName, Bytes>& objects() const { return objects_; }  // undamaged
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

 private:
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
  StateDict target_;
  StateDict expected_;
  CheckpointReader reader_;
};

}  // namespace cairn::testing
