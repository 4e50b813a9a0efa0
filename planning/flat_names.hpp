// The names of the values of a nested state, as flattening makes them. Internal.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include <cairn/planning/metadata.hpp>

namespace cairn {

// Collects names that must differ. Values come from a file, so the memory that names take is
// bounded: a file may share one long key among many values, but each of them gets a name of its
// own.
class FlatNames {
 public:
  // Returns the name of the value at `path`. Throws kAlreadyExists, naming both paths, if another
  // path has it, and kUnsupported if the names take more than 64 MiB and 1 KiB for each value.
  std::string add(const Path& path);

 private:
  static constexpr std::size_t kNamesFreeBytes = std::size_t{64} << 20;
  static constexpr std::size_t kBytesPerName = 1024;

  std::unordered_map<std::string, Path> paths_;  // by name
  std::size_t names_bytes_ = 0;
};

}  // namespace cairn
