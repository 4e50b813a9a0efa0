#include <cairn/formats/saved_value.hpp>

#include <unordered_set>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/planning/flat_names.hpp>

namespace cairn {
namespace {

// Reads the values of an archive. Without an archive, the pickle has no tensors.
class SavedReader {
 public:
  SavedReader(std::shared_ptr<const SavedPickle> saved, const TorchArchive* archive, std::string what)
      : saved_(std::move(saved)), archive_(archive), rules_(*saved_, std::move(what)) {}

  // Returns a value that is not split, which may be opaque.
  SavedValue whole(const PickleValue& from) {
    SavedValue result{saved_, from};
    Pickler scratch(2);
    SavedPickler pickler(scratch, BlobsAs::kBytes);
    try {
      if (is_tensor(from)) {
        result.tensor = complete(from);
      } else if (const auto blob = blob_of(from)) {
        rules_.spend(from, blob->bytes.size());  // a copy for each place of shared bytes
      } else {
        pickler.put(from, rules_, nullptr);  // tries to write it
        for (const TensorDescription& tensor : pickler.tensors()) require_storage(from, tensor);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported || rules_.is_spent()) throw;
      if (pickler.tensors().empty() || pickler.tensors().back().dtype != DType::kUnknown) return opaque(from, error.what());
      result.why = "it holds, in a tuple, a tensor of torch." + pickler.tensors().back().unknown_dtype +
                   ", which this version of Cairn does not know";
    }
    return result;
  }

  // Returns a value that is not understood. Of a DTensor it says which part this is.
  SavedValue opaque(const PickleValue& from, std::string why) {
    std::unordered_set<std::uint32_t> seen;
    std::string name = opaque_name_in(from, seen);
    if (name.empty()) name = to_string(from.kind());
    // The local tensor is read if the other parts are found, so it must be complete, too. One that
    // cannot be described is no part.
    auto part = distributed_part(from);
    try {
      if (part && archive_ != nullptr) complete(part->local);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported || rules_.is_spent()) throw;
      part.reset();
    }
    if (part) {
      name = "torch.distributed.tensor.DTensor";
      why = "this is the part " + to_string(part->box) + " of a DTensor of size " + to_string(part->size) +
            ", and the files of other ranks, beside this one and with names that differ in one number, do not complete it";
    }
    return {saved_, from, std::nullopt, std::move(name), std::move(why), part};
  }

  std::vector<SavedEntry> entries(const std::string& key) {
    if (!key.empty()) path_ = {key};
    visit(saved_->tree.root());
    const std::size_t count = entries_.size();
    for (std::size_t i = 0; i < count; ++i)
      if (entries_[i].value.is_opaque()) {
        std::unordered_set<std::uint32_t> seen;
        const SavedEntry opaque = entries_[i];  // a copy, because the list grows
        const std::size_t first = entries_.size();
        add_tensors_in(opaque.value.value, opaque.fqn, opaque.path, seen);
        for (std::size_t added = first; added < entries_.size(); ++added) entries_[added].within = opaque.fqn;
      }
    return std::move(entries_);
  }

 private:
  // Splits dicts, and lists that have tensors or dicts. The depth is bounded by that of the pickle.
  void visit(const PickleValue& from) {
    std::optional<PickleValue> pairs;
    std::vector<std::string> keys;
    std::optional<std::string> why;
    bool is_split = false;
    try {
      if (!is_tensor(from) && (pairs = pairs_of(from))) {
        rules_.spend(from, SavedRules::kContainerBytes);
        keys = rules_.keys_of(*pairs);
      }
      is_split = from.is(PickleKind::kList) && from.size() > 0 && rules_.nesting(from) == SavedRules::Nesting::kSplit;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported || rules_.is_spent()) throw;
      why = error.what();
    }
    if (why) {
      add(opaque(from, *why));
    } else if (!keys.empty() || (pairs && path_.empty())) {
      for (std::size_t i = 0; i < keys.size(); ++i) descend(keys[i], pairs->mapped(i));
    } else if (is_split) {
      rules_.spend(from, SavedRules::kContainerBytes);
      for (std::size_t i = 0; i < from.size(); ++i) descend(static_cast<std::int64_t>(i), from[i]);
    } else {
      add(whole(from));
    }
  }

  void descend(PathElement step, const PickleValue& value) {
    path_.push_back(std::move(step));
    visit(value);
    path_.pop_back();
  }

  // The name of a value that is not in a dict, because it is opaque as a whole, is its class.
  void add(SavedValue value) {
    rules_.spend(value.value, SavedRules::kKeyBytes);
    if (path_.empty()) path_ = {value.opaque};
    std::string fqn = to_string(path_);
    names_.add(fqn, path_, entries_);
    entries_.push_back({std::move(fqn), path_, std::move(value)});
  }

  // Returns the description of a tensor whose storage is in the archive and long enough.
  TensorDescription complete(const PickleValue& from) {
    TensorDescription tensor = described_tensor(from);
    rules_.spend(from, 16 * tensor.sizes.size());
    if (tensor.dtype != DType::kUnknown) require_storage(from, tensor);
    return tensor;
  }

  void require_storage(const PickleValue& from, const TensorDescription& tensor) const {
    if (archive_ == nullptr) corrupt(from, "a tensor without an archive");
    if (const std::string why = archive_->shortage(tensor); !why.empty()) corrupt(from, why);
  }

  // Values of one piece come before lists in PickleKind, but for globals.
  static bool has_parts(const PickleValue& value) {
    return value.shape() >= PickleKind::kList && value.shape() != PickleKind::kGlobal;
  }

  // Returns the name of what makes a value opaque.
  std::string opaque_name_in(const PickleValue& value, std::unordered_set<std::uint32_t>& seen) {
    if (value.is(PickleKind::kOpaque)) return value.opaque_name();
    std::string name;
    if (!has_parts(value) || !seen.insert(value.id()).second) return name;
    for_each_part(value, [&](std::string_view, const PickleValue& part) {
      rules_.spend(value, SavedRules::kPartBytes);
      if (name.empty()) name = opaque_name_in(part, seen);
    });
    return name;
  }

  // Lists the complete tensors of an opaque value. Of parts with one name, the first counts.
  void add_tensors_in(const PickleValue& value, const std::string& above, const Path& path,
                      std::unordered_set<std::uint32_t>& seen) {
    if (!has_parts(value) || !seen.insert(value.id()).second) return;
    std::size_t index = 0;
    std::unordered_set<std::string> names;
    for_each_part(value, [&](std::string_view given, const PickleValue& part) {
      rules_.spend(value, SavedRules::kPartBytes);
      std::string name = given.empty() ? std::to_string(index) : std::string(given);
      ++index;
      if (names.count(name) > 0) return;
      const std::size_t before = entries_.size();
      const std::string fqn = above + "." + name;
      rules_.spend(value, SavedRules::kKeyBytes + 2 * fqn.size());
      Path below = path;
      below.emplace_back(name);
      if (is_tensor(part)) {
        try {
          SavedValue found{saved_, part};
          found.tensor = complete(part);
          entries_.push_back({fqn, std::move(below), std::move(found)});
        } catch (const Error& error) {
          if ((error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kCorrupt) || rules_.is_spent()) throw;
        }
      } else {
        add_tensors_in(part, fqn, below, seen);
      }
      if (entries_.size() > before) names.insert(std::move(name));
    });
  }

  const std::shared_ptr<const SavedPickle> saved_;
  const TorchArchive* const archive_;
  SavedRules rules_;
  Path path_;
  FlatNames names_;
  std::vector<SavedEntry> entries_;
};

}  // namespace

std::vector<SavedEntry> saved_entries(const TorchArchive& archive, const std::string& key) {
  constexpr std::uint64_t kPickleBytesMax = std::uint64_t{1} << 30;  // a sparse file may claim any size
  const auto saved = std::make_shared<SavedPickle>(archive, kPickleBytesMax);
  const PickleValue root = saved->tree.root();
  if (key.empty() && !pairs_of(root) && !root.is(PickleKind::kOpaque))
    throw Error(ErrorCode::kUnsupported, archive.what() + " holds " + to_string(root.kind()) + ", not a state dict");
  return SavedReader(saved, &archive, archive.what()).entries(key);
}

std::vector<SavedEntry> saved_entries(Bytes pickle, const std::string& what) {
  return SavedReader(std::make_shared<SavedPickle>(std::move(pickle), what), nullptr, what).entries("");
}

SavedValue saved_value(const TorchArchive& archive) {
  const auto saved = std::make_shared<SavedPickle>(archive);
  SavedReader reader(saved, &archive, archive.what());
  const SavedValue value = reader.whole(saved->tree.root());
  if (!value.is_opaque() && !value.why.empty()) return reader.opaque(value.value, value.why);
  if (!value.is_opaque() && !value.tensor)
    for (const TensorDescription& tensor : pickle_leaf(value, BlobsAs::kBytes).tensors) archive.read_storage(tensor.storage_key);
  return value;
}

SavedValue opaque_value(const std::shared_ptr<const SavedPickle>& saved, const TorchArchive& archive, const std::string& why) {
  return SavedReader(saved, &archive, archive.what()).opaque(saved->tree.root(), why);
}

}  // namespace cairn
