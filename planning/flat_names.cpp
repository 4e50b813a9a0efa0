#include <cairn/planning/flat_names.hpp>

#include <cairn/base/error.hpp>

namespace cairn {

std::string FlatNames::add(const Path& path) {
  std::string fqn = to_string(path);
  const auto [known, is_new] = paths_.emplace(fqn, path);
  if (!is_new)
    throw Error(ErrorCode::kAlreadyExists, "state dict: " + describe_path(known->second) + " and " + describe_path(path) +
                                               " both flatten to \"" + fqn + "\"; rename one of the keys");
  names_bytes_ += fqn.size();
  if (names_bytes_ > kNamesFreeBytes + (paths_.size() - 1) * kBytesPerName)
    throw Error(ErrorCode::kUnsupported, "state dict: the names of its values take more than " + std::to_string(kBytesPerName) +
                                             " bytes each; shorten the key that begins \"" + fqn.substr(0, 40) + '"');
  return fqn;
}

}  // namespace cairn
