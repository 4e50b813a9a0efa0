// The names of the values of a nested state, as flattening makes them. Internal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <cairn/planning/metadata.hpp>
#include <cairn/planning/name_table.hpp>

namespace cairn {

// Collects names that must differ. Values come from a file, so the memory that names take is
// bounded: a file may share one long key among many values, but each of them gets a name of its
// own.
class FlatNames {
 public:
  // Adds the name of the value at `path`. `entries` are those of the names before, in their
  // order. Throws kAlreadyExists, naming both paths, if one of them has the name, and kUnsupported
  // if the names take more than 64 MiB and 1 KiB for each value.
  template <class Entry>
  void add(const std::string& fqn, const Path& path, const std::vector<Entry>& entries) {
    if (const NameId id = add(fqn); id < entries.size()) throw_twice(fqn, entries[id].path, path);
  }
  void reserve(std::size_t names) { names_.reserve(names); }
  [[noreturn]] static void throw_twice(const std::string& fqn, const Path& before, const Path& path);

 private:
  NameId add(const std::string& fqn);

  static constexpr std::size_t kNamesFreeBytes = std::size_t{64} << 20;
  static constexpr std::size_t kBytesPerName = 1024;

  NameTable names_;
  std::size_t names_bytes_ = 0;
};

}  // namespace cairn
