#include <cairn/messages/columns.hpp>

#include <limits>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/settings.hpp>

namespace cairn::columns {

void fail_encode(const char* what, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, std::string("cannot encode a ") + what + ": " + reason);
}

void fail_decode(const char* what, const std::string& reason) {
  throw Error(ErrorCode::kCorrupt, std::string("cannot decode a ") + what + ": " + reason);
}

Bytes serialize(const google::protobuf::MessageLite& message, const char* what) {
  const std::size_t size = message.ByteSizeLong();
  // Protobuf cannot encode more, and SerializeWithCachedSizesToArray does not check it.
  if (size > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw Error(ErrorCode::kUnsupported, std::string("cannot encode a ") + what + ": it has " + std::to_string(size) +
                                             " bytes and at most 2 GiB are supported; save fewer items per call");
  Bytes bytes(size, '\0');
  // Uses the sizes that ByteSizeLong has just cached, which saves a pass over the message.
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(bytes.data()));
  return bytes;
}

void parse(ByteSpan bytes, google::protobuf::MessageLite& message, const char* what) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    fail_decode(what, "it has " + std::to_string(bytes.size()) + " bytes, at most 2 GiB are supported");
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    fail_decode(what, "its " + std::to_string(bytes.size()) + " bytes are not a Protobuf message of this kind, or not all of one");
}

namespace {

// Limits what a few bytes can expand to.
constexpr std::size_t kSharedBytesMax = 127;

std::size_t common_length(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

}  // namespace

// Neighbouring names mostly begin alike, and are written without their common beginning.
void names_to_proto(const NameTable& names, v1::Names& message) {
  message.mutable_lengths()->Reserve(static_cast<int>(names.size()));
  std::string_view last;
  for (const std::string& name : names.all()) {
    const std::size_t shared = std::min(common_length(name, last), kSharedBytesMax);
    message.mutable_shared()->push_back(static_cast<char>(shared));
    message.mutable_text()->append(name, shared);
    message.add_lengths(static_cast<std::uint32_t>(name.size() - shared));
    last = name;
  }
}

void visit_names(const v1::Names& message, const char* what, std::string_view beginning,
                 const std::function<void(std::string_view name)>& add) {
  check_decode(message.shared().size() == static_cast<std::size_t>(message.lengths_size()), what,
               "the columns of its names differ in length");
  std::string_view text = message.text();
  std::string name(beginning);  // the last one that begins so
  std::size_t size = 0;         // of the last name
  std::size_t common = 0;       // how much of `beginning` it has
  const char* shared_bytes = message.shared().data();
  for (const std::uint32_t length : message.lengths()) {
    check_decode(length <= text.size(), what, "a name reaches beyond the text of all names");
    const std::size_t shared = static_cast<unsigned char>(*shared_bytes++);
    check_decode(shared <= std::min(size, kSharedBytesMax), what, "a name shares more than the name before it has");
    const std::string_view rest = text.substr(0, length);
    size = shared + length;
    // A name that shares more than that differs from `beginning` where the last one does.
    if (shared <= common) common = shared + common_length(rest, beginning.substr(shared));
    if (common == beginning.size()) {
      name.resize(shared);
      name += rest;
      add(name);
    } else {
      add({});
    }
    text.remove_prefix(length);
  }
  check_decode(text.empty(), what, "the text of all names is longer than the names");
}

NameTable names_from_proto(const v1::Names& message, const char* what) {
  NameTable names;
  names.reserve(std::min(static_cast<std::size_t>(message.lengths_size()), message.text().size() + 1));
  visit_names(message, what, "", [&](std::string_view name) {
    // Ids follow from the position. A name that appears twice would shift the ids of all later
    // names.
    const std::size_t id = names.size();
    if (names.intern(name) != id) fail_decode(what, "name " + std::to_string(id) + " appears twice");
  });
  return names;
}

// Stores a path as the lengths of its steps. The text of the steps is the name itself, because
// names are paths joined with '.'. A path that does not join to its name brings its own text.
void PathEncoder::add(std::uint32_t id, std::string_view name, const Path& path) {
  if (id >= seen_.size()) seen_.resize(2 * std::size_t{id} + 16);
  if (seen_[id]) fail_encode(what_, "'" + std::string(name) + "' has two paths");
  seen_[id] = true;
  // True as long as the steps so far, joined with '.', are a prefix of the name. Almost all paths
  // join to their name; only the others store a text of their own.
  bool joins_to_name = !path.empty() || name.empty();
  std::string_view rest = name;
  char digits[24];
  for (std::size_t i = 0; i < path.size(); ++i) {
    std::string_view text;
    const auto* key = std::get_if<std::string>(&path[i]);
    if (key) {
      text = *key;
    } else {
      text = {digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof(digits), std::get<std::int64_t>(path[i])).ptr -
                                               digits)};
    }
    check_encode(text.size() < kItemsMax, what_, "a key is too long");
    // Length and kind of a step in one number: even for a key, odd for an index.
    message_.add_steps(static_cast<std::uint32_t>(2 * text.size() + (key ? 0 : 1)));
    if (!joins_to_name) continue;
    if (i > 0) {
      joins_to_name = !rest.empty() && rest.front() == '.';
      if (joins_to_name) rest.remove_prefix(1);
    }
    joins_to_name = joins_to_name && rest.substr(0, text.size()) == text;
    if (joins_to_name) rest.remove_prefix(text.size());
  }
  // Joins the steps again, so that the decoder can cut this text like a name.
  if (!joins_to_name || !rest.empty()) {
    const std::string text = to_string(path);
    message_.add_renamed(static_cast<std::uint32_t>(message_.names_size()));
    message_.mutable_renamed_text()->append(text);
    message_.add_text_lengths(static_cast<std::uint32_t>(text.size()));
  }
  message_.add_names(id);
  message_.add_lengths(static_cast<std::uint32_t>(path.size()));
}

void paths_from_proto(const v1::Paths& message, std::size_t name_count, const NameAt& name_at, const std::vector<bool>& is_wanted,
                      const char* what, const std::function<void(NameId name, Path path)>& add) {
  check_decode(message.names_size() == message.lengths_size() && message.renamed_size() == message.text_lengths_size(), what,
               "the columns of its paths differ in length");
  std::vector<bool> seen(name_count);
  int next_step = 0;
  int next_renamed = 0;
  std::string_view renamed_text = message.renamed_text();
  for (int i = 0; i < message.names_size(); ++i) {
    const std::uint32_t id = message.names(i);
    check_decode(id < name_count, what, "a path refers to a name that is not there");
    check_decode(!seen[id], what, "a name has two paths");
    seen[id] = true;
    std::string_view text = name_at(id);
    // The columns of renamed paths are in the order of the paths, so one position is enough.
    if (next_renamed < message.renamed_size() && message.renamed(next_renamed) == static_cast<std::uint32_t>(i)) {
      const std::uint32_t length = message.text_lengths(next_renamed++);
      check_decode(length <= renamed_text.size(), what, "the text of a path reaches beyond the text of all");
      text = renamed_text.substr(0, length);
      renamed_text.remove_prefix(length);
    }
    const std::uint32_t length = message.lengths(i);
    // Checked before `reserve`: a damaged length must not allocate.
    check_decode(length <= static_cast<std::uint32_t>(message.steps_size() - next_step), what,
                 "a path has more steps than there are");
    if (!is_wanted.empty() && !is_wanted[id]) {
      next_step += static_cast<int>(length);
      continue;
    }
    Path path;
    path.reserve(length);
    // Cuts the text at the stored lengths. Looking for dots would be wrong: keys may contain them.
    for (std::uint32_t part_of_path = 0; part_of_path < length; ++part_of_path) {
      if (part_of_path > 0) {
        check_decode(!text.empty() && text.front() == '.', what, "the steps of a path do not fit its text");
        text.remove_prefix(1);
      }
      const std::uint32_t step = message.steps(next_step++);
      check_decode(step / 2 <= text.size(), what, "the steps of a path do not fit its text");
      const std::string_view part = text.substr(0, step / 2);
      text.remove_prefix(part.size());
      if (step % 2 == 0) {
        path.emplace_back(std::in_place_type<std::string>, part);
        continue;
      }
      const auto index = parse_number<std::int64_t>(part);
      check_decode(index.has_value(), what, "a position in a list is not a number");
      path.emplace_back(*index);
    }
    check_decode(text.empty(), what, "the steps of a path do not fit its text");
    add(id, std::move(path));
  }
  check_decode(next_step == message.steps_size() && next_renamed == message.renamed_size() && renamed_text.empty(), what,
               "there is more than its paths need");
}

std::uint32_t PropertyEncoder::index_of(const TensorProperties& properties) {
  // Neighbouring tensors mostly have the same properties.
  if (last_ < known_.size() && known_[last_] == properties) return last_;
  for (last_ = 0; last_ < known_.size(); ++last_)
    if (known_[last_] == properties) return last_;
  check_encode(element_size(properties.dtype) > 0, what_, "a tensor has an unknown dtype");
  check_encode(properties.memory_format <= MemoryFormat::kPreserve, what_, "a tensor has an unknown memory format");
  v1::TensorProperties& message = *messages_.Add();
  message.set_dtype(static_cast<v1::DType>(properties.dtype));
  // Values of Protobuf's enumerations begin at 1; PyTorch's memory formats begin at 0.
  message.set_memory_format(static_cast<v1::MemoryFormat>(static_cast<int>(properties.memory_format) + 1));
  message.set_requires_grad(properties.requires_grad);
  message.set_pin_memory(properties.pin_memory);
  known_.push_back(properties);
  return last_;
}

std::vector<TensorProperties> properties_from_proto(const PropertyMessages& messages, const char* what) {
  std::vector<TensorProperties> result;
  result.reserve(static_cast<std::size_t>(messages.size()));
  for (const v1::TensorProperties& message : messages) {
    // Protobuf keeps unknown values of an enumeration as numbers.
    if (message.dtype() < v1::DTYPE_FLOAT32 || message.dtype() > v1::DType_MAX)
      fail_decode(what, "dtype " + std::to_string(message.dtype()) + " is unknown");
    if (message.memory_format() < v1::MEMORY_FORMAT_CONTIGUOUS || message.memory_format() > v1::MEMORY_FORMAT_PRESERVE)
      fail_decode(what, "memory format " + std::to_string(message.memory_format()) + " is unknown");
    result.push_back({static_cast<DType>(message.dtype()), message.requires_grad(),
                      static_cast<MemoryFormat>(message.memory_format() - 1), message.pin_memory()});
  }
  return result;
}

static_assert(static_cast<int>(DType::kFloat4E2M1FnX2) == v1::DTYPE_FLOAT4_E2M1FN_X2 && v1::DType_MAX == kDTypeCount,
              "the messages know all dtypes, by the same numbers");

void ExtentsReader::fail(std::size_t dims) const {
  if (dims > kDimsMax)
    fail_decode(what_,
                "a tensor has " + std::to_string(dims) + " dimensions, at most " + std::to_string(kDimsMax) + " are possible");
  fail_decode(what_, "there are fewer sizes and offsets than items need");
}

// Decoders refuse what cannot be counted, so that the code behind them multiplies without care.
bool is_countable(const Extents& sizes, std::size_t element_bytes) noexcept {
  auto bytes = static_cast<std::int64_t>(element_bytes);
  bool overflow = false;
  for (const std::int64_t size : sizes) {
    // No elements: the other sizes may be anything.
    if (size == 0) return true;
    overflow = __builtin_mul_overflow(bytes, size, &bytes) || overflow;
  }
  return !overflow;
}

bool is_countable(const Extents& offsets, const Extents& sizes) noexcept {
  std::int64_t end = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    if (__builtin_add_overflow(offsets[dim], sizes[dim], &end)) return false;
  return true;
}

}  // namespace cairn::columns
