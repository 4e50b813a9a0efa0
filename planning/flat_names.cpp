#include <cairn/planning/flat_names.hpp>

#include <cairn/base/error.hpp>

namespace cairn {

void FlatNames::throw_twice(const std::string& fqn, const Path& before, const Path& path) {
  throw Error(ErrorCode::kAlreadyExists, "state dict: " + describe_path(before) + " and " + describe_path(path) +
                                             " both flatten to \"" + fqn + "\"; rename one of the keys");
}

NameId FlatNames::add(const std::string& fqn) {
  const std::size_t known = names_.size();
  const NameId id = names_.intern(fqn);
  if (id < known) return id;  // the caller refuses it
  names_bytes_ += fqn.size();
  if (names_bytes_ > kNamesFreeBytes + id * kBytesPerName)
    throw Error(ErrorCode::kUnsupported, "state dict: the names of its values take more than " + std::to_string(kBytesPerName) +
                                             " bytes each; shorten the key that begins \"" + fqn.substr(0, 40) + '"');
  return id;
}

}  // namespace cairn
