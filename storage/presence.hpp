// Decides what an answer or an error of a store says about an object, and which names say that data
// are dead. All code that removes an object, or passes a checkpoint over, asks here. Internal.
//
// Only the store's own answers prove absence: ENOENT for the named entry, `NoSuchKey`, a complete
// listing. A refusal, a time-out or an answer that cannot be understood says nothing about the
// object. Such an error is an error of the store, and callers rethrow it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

enum class Presence : std::uint8_t {
  kPresent = 1,
  kAbsent,   // the store says so
  kUnknown,  // the store has refused, has not answered, or contradicts itself
};

// Returns what an error says about the object that was to be read. An object whose content is not
// as expected is present.
inline Presence presence_by(const Error& error) noexcept {
  switch (error.code()) {
    case ErrorCode::kNotFound:
      return Presence::kAbsent;
    case ErrorCode::kUnavailable:
    case ErrorCode::kPermission:
    case ErrorCode::kNoSpace:
    case ErrorCode::kDeadline:
    case ErrorCode::kCancelled:
    case ErrorCode::kInternal:
      return Presence::kUnknown;
    default:
      return Presence::kPresent;
  }
}

// Returns whether an error is about the record of one checkpoint, not about the store. After any
// other error, callers must not conclude that another checkpoint is the latest.
inline bool tells_of_the_record(const Error& error) noexcept { return presence_by(error) != Presence::kUnknown; }

// Returns whether a list of objects, or of names, has this name.
inline const std::string& listed_name(const ObjectInfo& object) noexcept { return object.name; }
inline const std::string& listed_name(const std::string& name) noexcept { return name; }
template <class List>
bool has_name(const List& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&](const auto& entry) { return listed_name(entry) == name; });
}

// Returns the name of the record of a place, relative to the run.
inline ObjectName record_below(const ObjectName& place) { return place + "/" + kCommitRecordName; }

// Returns the sizes of listed objects by name.
inline std::map<ObjectName, std::uint64_t> sizes_of(const std::vector<ObjectInfo>& objects) {
  std::map<ObjectName, std::uint64_t> sizes;
  for (const ObjectInfo& object : objects) sizes.emplace(object.name, object.size_bytes);
  return sizes;
}

// Returns whether there are parts of ranks among the places below a checkpoint's.
inline bool has_parts(const std::vector<ObjectName>& places) {
  return std::any_of(places.begin(), places.end(), [](const ObjectName& place) { return part_of_name(place).has_value(); });
}

// Returns whether a place has objects. It has none below a file: saves to it say so.
inline bool has_objects(Store& place) {
  try {
    return !place.list().empty();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPrecondition) throw;
    return false;
  }
}

// Looks for an object in two independent ways: by its name, and in `listing`, which the caller has
// made before. For removals. Returns kAbsent only if neither finds the object, and kUnknown if they
// disagree. Throws the store's errors.
inline Presence look_twice(Store& store, const ObjectName& name, const std::vector<ObjectInfo>& listing) {
  if (store.is_taken(name)) return Presence::kPresent;
  return has_name(listing, name) ? Presence::kUnknown : Presence::kAbsent;
}

// The mark of a removal (storage/runs/run_directory.hpp): ".removed-<save id>". `save_id_of_mark`
// returns nothing for other names.
inline constexpr std::string_view kRemovalMark = ".removed-";
inline std::string removal_mark_name(const std::string& save_id) { return std::string(kRemovalMark) + save_id; }
inline std::optional<std::string> save_id_of_mark(std::string_view name) {
  if (name.rfind(kRemovalMark, 0) != 0 || !is_save_id(name.substr(kRemovalMark.size()))) return std::nullopt;
  return std::string(name.substr(kRemovalMark.size()));
}

// Returns whether `name` has the form that PyTorch gives its data files: "__0_0.distcp".
inline bool is_foreign_data_file(const std::string& name) {
  return name.rfind(kDataFilePrefix, 0) == 0 && ends_with(name, ".distcp") && name.find('/') == std::string::npos &&
         !save_id_of_file(name);
}

}  // namespace cairn
