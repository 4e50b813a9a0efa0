// The values of a state that torch.save wrote, by their flattened names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/formats/saved_value.hpp>

namespace cairn {

struct SavedEntry {
  std::string fqn;
  Path path;
  SavedValue value;
  std::string within{};  // the name of the opaque value that it is in; "" for others
};

// Returns the values of a state, flattened, and then the tensors in opaque values, below the names
// of these, by attributes, keys and indices; those may have the name of another entry. If the saved
// value is itself opaque, its class is its name. Throws kCorrupt if the archive is damaged, and
// kUnsupported for a value of another kind than a dict. With a `key`, returns the flattened
// {key: value} for a value of any kind.
std::vector<SavedEntry> saved_entries(const TorchArchive& archive, const std::string& key = "");
// Does so for a pickle without tensors that was made here.
std::vector<SavedEntry> saved_entries(Bytes pickle, const std::string& what);
// Returns the whole of an archive as one value, which is never split. Checks the elements of
// tensors in it.
SavedValue saved_value(const TorchArchive& archive);
// Returns the whole as an opaque value, for this reason.
SavedValue opaque_value(const std::shared_ptr<const SavedPickle>& saved, const TorchArchive& archive, const std::string& why);

}  // namespace cairn
