// Converts columns that plans and metadata have in common to Protobuf, and back. A column is a
// repeated field with the values of one property of all items. Internal to the codecs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/message_lite.h>

#include <cairn/messages/columns.pb.h>
#include <cairn/base/bytes.hpp>
#include <cairn/planning/box.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn::columns {

// PyTorch's limit on the number of dimensions.
inline constexpr std::size_t kDimsMax = 64;

// --- errors --------------------------------------------------------------------------------------

// Throw an error. `what` names the thing being encoded or decoded, such as "save plan".
[[noreturn]] void fail_encode(const char* what, const std::string& reason);  // throws kInvalidArgument
[[noreturn]] void fail_decode(const char* what, const std::string& reason);  // throws kCorrupt

inline void check_encode(bool valid, const char* what, const char* reason) {
  if (!valid) fail_encode(what, reason);
}
inline void check_decode(bool valid, const char* what, const char* reason) {
  if (!valid) fail_decode(what, reason);
}

// The maximum number of entries in a column. Protobuf could not count more than INT_MAX.
inline constexpr std::size_t kItemsMax = 1u << 26;

// --- whole messages ------------------------------------------------------------------------------

Bytes serialize(const google::protobuf::MessageLite& message, const char* what);
void parse(ByteSpan bytes, google::protobuf::MessageLite& message, const char* what);

// --- names and paths -----------------------------------------------------------------------------

void names_to_proto(const NameTable& names, v1::Names& message);
// Calls `add` with each name that begins with `beginning`, and with "" for each other one.
void visit_names(const v1::Names& message, const char* what, std::string_view beginning,
                 const std::function<void(std::string_view name)>& add);
NameTable names_from_proto(const v1::Names& message, const char* what);

// Encodes paths. `name` is the text of name `id`. No two paths may have the same id.
class PathEncoder {
 public:
  PathEncoder(v1::Paths& message, const char* what) : message_(message), what_(what) {}
  void add(std::uint32_t id, std::string_view name, const Path& path);

 private:
  v1::Paths& message_;
  const char* what_;
  std::vector<bool> seen_;  // by name id
};

using NameAt = std::function<std::string_view(std::size_t id)>;
// Calls `add` with each path and the id of its name, of which `name_at` is the text. Leaves out ids
// that `is_wanted` does not have; if it is empty, none. Throws kCorrupt unless the ids are below
// `name_count`, and no id occurs twice.
void paths_from_proto(const v1::Paths& message, std::size_t name_count, const NameAt& name_at, const std::vector<bool>& is_wanted,
                      const char* what, const std::function<void(NameId name, Path path)>& add);

// --- tensor properties ---------------------------------------------------------------------------

using PropertyMessages = google::protobuf::RepeatedPtrField<v1::TensorProperties>;

// Stores each distinct set of properties once in a message. `index_of` returns a set's index there.
class PropertyEncoder {
 public:
  PropertyEncoder(PropertyMessages& messages, const char* what) : messages_(messages), what_(what) {}
  std::uint32_t index_of(const TensorProperties& properties);

 private:
  PropertyMessages& messages_;
  const char* what_;
  std::vector<TensorProperties> known_;
  std::uint32_t last_ = 0;
};

std::vector<TensorProperties> properties_from_proto(const PropertyMessages& messages, const char* what);

// --- extents -------------------------------------------------------------------------------------

// Reads Extents from a column, one after another.
class ExtentsReader {
 public:
  ExtentsReader(const google::protobuf::RepeatedField<std::int64_t>& column, const char* what)
      : next_(column.data()), left_(static_cast<std::size_t>(column.size())), what_(what) {}

  Extents take(std::size_t dims) {
    if (dims > kDimsMax || dims > left_) fail(dims);
    for (std::size_t dim = 0; dim < dims; ++dim)
      if (next_[dim] < 0) fail_decode(what_, "a size or offset is negative");
    Extents extents(next_, dims);
    next_ += dims;
    left_ -= dims;
    return extents;
  }
  void skip(std::size_t numbers) {
    if (numbers > left_) fail(numbers);
    next_ += numbers;
    left_ -= numbers;
  }
  void check_end() const { check_decode(left_ == 0, what_, "there are more sizes and offsets than items need"); }

 private:
  [[noreturn]] void fail(std::size_t dims) const;

  const std::int64_t* next_;
  std::size_t left_;
  const char* what_;
};

inline void add_extents(const Extents& extents, google::protobuf::RepeatedField<std::int64_t>& column) {
  const auto dims = static_cast<int>(extents.size());
  column.Reserve(column.size() + dims);
  std::int64_t* target = column.AddNAlreadyReserved(dims);
  for (const std::int64_t value : extents) *target++ = value;
}

// Returns whether the number of elements times `element_bytes` fits in 63 bits.
bool is_countable(const Extents& sizes, std::size_t element_bytes) noexcept;
// Returns whether every offset plus its size fits in 63 bits.
bool is_countable(const Extents& offsets, const Extents& sizes) noexcept;

}  // namespace cairn::columns
