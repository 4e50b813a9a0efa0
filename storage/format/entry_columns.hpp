// The entries in Cairn's section of the commit record, column by column, and which of them a load
// needs. Internal to metadata_codec.cpp, which writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/messages/metadata.pb.h>
#include <cairn/messages/columns.hpp>
#include <cairn/planning/metadata.hpp>

namespace cairn {

inline constexpr char kSectionName[] = "metadata section";  // in errors
inline constexpr std::uint32_t kScalarChunksMax = 16;       // of a 0-dim tensor; a whole one has one chunk

// Walks over the entries of a section. Each column has a position of its own; at the end all
// columns must be used up, so that no number is read as another's. Throws kCorrupt.
class EntryColumns {
 public:
  EntryColumns(const v1::Metadata& message, bool is_version_1);

  // Goes to the next entry. Before the next call, the caller takes the extents of a tensor, or
  // calls `skip`. Returns false after the last entry.
  bool next();
  void skip();
  void check_end() const;

  bool is_whole() const { return kind == v1::ENTRY_KIND_WHOLE_TENSOR; }
  std::size_t locations() const { return is_stored ? chunks : 0; }

  // The current entry:
  int entry = -1;
  v1::EntryKind kind{};
  bool is_bytes = false, is_stored = false;
  std::uint32_t properties = 0;  // an index that is not checked
  std::uint32_t dims = 0, chunks = 0;
  columns::ExtentsReader sizes, chunk_extents;

 private:
  const v1::Metadata& message_;
  const bool is_version_1_;
  std::size_t locations_left_;
  int tensors_ = 0, counts_ = 0;
};

// The part of a section to decode; by default everything.
class Selection {
 public:
  // Selects what a load needs, and puts the needed names into `names` at their places ("" at those
  // of others). Returns false if a name is missing, or all names below a prefix: then everything is
  // to be decoded, with another object. Throws kCorrupt.
  bool select(const v1::Metadata& message, bool is_version_1, const NeededNames& needed, NameList& names);

  // The entries to decode. The layout of a file follows from all of its items.
  bool has_entry(std::size_t entry) const { return entries_.empty() || entries_[entry]; }
  // Returns how many of `all` entries are needed.
  std::size_t entries(std::size_t all) const { return all - are_bytes_.size(); }
  bool has_file(std::size_t file) const { return files_.empty() || files_[file]; }
  // By name id: whether the path is decoded; empty: all are. Not to be used if no prefix is needed.
  const std::vector<bool>& paths() const { return paths_; }
  // Removes the entries that only the layout needed, and lists those that are not needed. `names`
  // are those of the section.
  void remove_others(v1::Names names, Metadata& metadata);

 private:
  std::vector<bool> names_, paths_, entries_, files_, are_bytes_;
};

}  // namespace cairn
