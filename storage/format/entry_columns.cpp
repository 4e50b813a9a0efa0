#include <cairn/storage/format/entry_columns.hpp>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

using columns::check_decode;

bool is_bytes_kind(v1::EntryKind kind) { return kind == v1::ENTRY_KIND_BYTES || kind == v1::ENTRY_KIND_UNSTORED_BYTES; }

// Returns the end of the locations of each entry.
std::vector<std::uint32_t> ends_of_locations(const v1::Metadata& message, bool is_version_1) {
  std::vector<std::uint32_t> ends;
  ends.reserve(static_cast<std::size_t>(message.kinds_size()));
  std::uint32_t end = 0;
  for (EntryColumns columns(message, is_version_1); columns.next(); columns.skip())
    ends.push_back(end += static_cast<std::uint32_t>(columns.locations()));
  return ends;
}

// Returns the length of what all names begin with.
std::size_t shared_beginning(const std::vector<std::string>& names) {
  if (names.empty()) return 0;
  std::size_t length = names[0].size();
  for (const std::string& name : names) {
    length = std::min(length, name.size());
    while (name.compare(0, length, names[0], 0, length) != 0) --length;
  }
  return length;
}

}  // namespace

EntryColumns::EntryColumns(const v1::Metadata& message, bool is_version_1)
    : sizes(message.sizes(), kSectionName),
      chunk_extents(message.chunk_extents(), kSectionName),
      message_(message),
      is_version_1_(is_version_1),
      locations_left_(static_cast<std::size_t>(message.locations().files_size())) {
  // There may be more names than entries: those of paths come last.
  check_decode(
      message.stored_size() == (is_version_1 ? message.kinds_size() : 0) && message.kinds_size() <= message.names().lengths_size(),
      kSectionName, "the columns of its entries differ in length");
  check_decode(message.dims_size() == message.tensor_properties_size(), kSectionName,
               "the columns of its tensors differ in length");
}

bool EntryColumns::next() {
  if (++entry == message_.kinds_size()) return false;
  kind = message_.kinds(entry);
  check_decode(v1::EntryKind_IsValid(kind) && kind != v1::ENTRY_KIND_UNSPECIFIED, kSectionName, "an entry is of an unknown kind");
  is_bytes = is_bytes_kind(kind);
  is_stored =
      is_version_1_ ? message_.stored(entry) : kind != v1::ENTRY_KIND_UNSTORED_TENSOR && kind != v1::ENTRY_KIND_UNSTORED_BYTES;
  chunks = 1;
  if (!is_bytes) {
    check_decode(tensors_ < message_.dims_size(), kSectionName, "there are fewer tensors than entries of that kind");
    properties = message_.tensor_properties(tensors_);
    dims = message_.dims(tensors_++);
    check_decode(dims <= columns::kDimsMax, kSectionName, "a tensor has too many dimensions");
    if (!is_whole()) {
      check_decode(counts_ < message_.chunk_counts_size(), kSectionName,
                   "there are fewer numbers of chunks than tensors in chunks");
      chunks = message_.chunk_counts(counts_++);
      // A chunk count is accepted only if the columns have as many entries. 0-dim chunks have no
      // entries, so they have a fixed limit.
      const std::size_t most =
          dims > 0 ? static_cast<std::size_t>(message_.chunk_extents_size()) / (std::size_t{2} * dims) : kScalarChunksMax;
      check_decode(chunks <= most, kSectionName, "a tensor has more chunks than there are");
    }
  }
  // Checked before the locations are allocated: a count may be damaged.
  check_decode(locations() <= locations_left_, kSectionName, "there are fewer locations than chunks and bytes objects");
  locations_left_ -= locations();
  return true;
}

void EntryColumns::skip() {
  if (is_bytes) return;
  sizes.skip(dims);
  if (!is_whole()) chunk_extents.skip(std::size_t{2} * dims * chunks);
}

void EntryColumns::check_end() const {
  check_decode(tensors_ == message_.dims_size(), kSectionName, "there are more tensors than entries of that kind");
  check_decode(counts_ == message_.chunk_counts_size(), kSectionName, "there are more numbers of chunks than tensors in chunks");
  check_decode(locations_left_ == 0, kSectionName, "there are more locations than chunks and bytes objects");
  sizes.check_end();
  chunk_extents.check_end();
}

bool Selection::select(const v1::Metadata& message, bool is_version_1, const NeededNames& needed, NameList& names) {
  if (message.planner_data().renamed_size() > 0) return false;  // names do not show what is below a prefix
  const auto entries = static_cast<std::size_t>(message.kinds_size());
  std::vector<bool> found(needed.names.size()), has_below(needed.prefixes.size());
  std::size_t missing = found.size();
  // A damaged section must not reserve much more than it has.
  const std::size_t text_bytes = message.names().text().size();
  const std::size_t names_max = std::min(static_cast<std::size_t>(message.names().lengths_size()), text_bytes + 1);
  names.reserve(names_max, 0);
  names_.reserve(names_max);
  NameId likely = 0;
  // A name without this beginning needs no look-up.
  const std::vector<std::string>& all_needed = needed.names.all();
  const std::string beginning =
      all_needed.empty() || !needed.prefixes.empty() ? "" : all_needed[0].substr(0, shared_beginning(all_needed));
  columns::visit_names(message.names(), kSectionName, beginning, [&](std::string_view name) {
    const bool is_entry = names.size() < entries;
    const bool may_be_known = is_entry && name.size() >= beginning.size();
    const auto known = may_be_known ? needed.names.find(name, likely) : std::nullopt;
    if (known) {
      check_decode(!found[*known], kSectionName, "a name appears twice");
      found[*known] = true;
      likely = *known + 1;
      --missing;
    }
    bool is_below_any = false;
    for (std::size_t i = 0; i < has_below.size(); ++i)
      if (is_below(name, needed.prefixes[i])) {
        is_below_any = true;
        if (is_entry) has_below[i] = true;
      }
    if (!has_below.empty()) paths_.push_back(is_below_any);
    const bool is_needed = known || is_below_any;
    names_.push_back(is_needed);
    if (!is_needed && is_entry) are_bytes_.push_back(is_bytes_kind(message.kinds(static_cast<int>(names.size()))));
    names.add(is_needed ? name : std::string_view());
  });
  if (missing > 0 || std::find(has_below.begin(), has_below.end(), false) != has_below.end()) return false;

  // The layout of a file places its items one after another. So a needed item needs the entries of
  // all items in its file, but none of those in other files: mostly, these are what one rank wrote.
  const std::vector<std::uint32_t> ends = ends_of_locations(message, is_version_1);
  files_.resize(static_cast<std::size_t>(message.files_size()));
  const auto visit_locations = [&](auto visit) {
    std::uint32_t at = 0;
    for (std::size_t entry = 0; entry < entries; ++entry)
      for (; at < ends[entry]; ++at) visit(entry, message.locations().files(static_cast<int>(at)));
  };
  visit_locations([&](std::size_t entry, std::uint32_t file) {
    check_decode(file < files_.size(), kSectionName, "something is stored in a file that is not there");
    if (names_[entry]) files_[file] = true;
  });
  entries_.assign(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(entries));
  visit_locations([&](std::size_t entry, std::uint32_t file) {
    if (files_[file]) entries_[entry] = true;
  });
  return true;
}

void Selection::remove_others(v1::Names names, Metadata& metadata) {
  auto& entries = metadata.state_dict_metadata;
  auto from = entries.begin(), to = from;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i]) continue;
    if (names_[i] && from != to) *to = std::move(*from);
    if (names_[i]) ++to;
    ++from;
  }
  if (!entries_.empty()) entries.erase(to, entries.end());
  // Few loads look at these names, so they are decoded when one does.
  const std::size_t count = are_bytes_.size();
  metadata.others = {NameList(count,
                              [names = std::move(names), count, is_needed = std::move(names_)](NameList& list) {
                                list.reserve(count, names.text().size());
                                std::size_t at = 0;
                                columns::visit_names(names, kSectionName, "", [&](std::string_view name) {
                                  if (list.size() < count && !is_needed[at++]) list.add(name);
                                });
                              }),
                     std::move(are_bytes_)};
}

}  // namespace cairn
