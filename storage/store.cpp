#include <cairn/storage/store.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>
#include <cairn/base/utf8.hpp>

namespace cairn {
namespace {

constexpr std::size_t kAttemptIdBytesMax = 200;

constexpr std::size_t kShownBytesMax = 120;

// Names come from outside and may hold anything; errors show them shortened and printable.
[[noreturn]] void refuse(const char* kind, const std::string& text, const char* why) {
  throw Error(ErrorCode::kInvalidArgument, std::string(kind) + " \"" + printable_utf8(text.substr(0, kShownBytesMax)) +
                                               (text.size() > kShownBytesMax ? "..." : "") + "\" is not valid: " + why);
}

// `last_is_open`: the last part may be incomplete, as in a prefix.
void check_parts(const char* kind, const std::string& text, bool last_is_open) {
  if (text.find('\0') != std::string::npos) refuse(kind, text, "it holds a NUL byte");
  if (!text.empty() && text.front() == '/') refuse(kind, text, "it must be relative to the store, without a leading '/'");
  std::size_t begin = 0;
  while (true) {
    const std::size_t slash = text.find('/', begin);
    const bool last = slash == std::string::npos;
    if (last && last_is_open) return;
    const std::string part = text.substr(begin, last ? std::string::npos : slash - begin);
    if (part.empty()) refuse(kind, text, "it has an empty part");
    // Such parts would lead out of the store, or give one object two names.
    if (part == "." || part == "..") refuse(kind, text, "'.' and '..' are no parts of a name");
    if (last) return;
    begin = slash + 1;
  }
}

}  // namespace

void check_object_name(const ObjectName& name) { check_parts("object name", name, false); }

void check_object_prefix(const ObjectName& prefix) { check_parts("prefix", prefix, true); }

void check_attempt_id(const std::string& save_id) {
  if (save_id.empty()) refuse("save id", save_id, "it is empty");
  if (save_id.size() > kAttemptIdBytesMax) refuse("save id", save_id, "it is longer than 200 bytes");
  for (char c : save_id) {
    // Ids become parts of file names.
    const bool fine =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!fine) refuse("save id", save_id, "only letters, digits, '.', '_' and '-' may be in it");
  }
}

void check_overwrite(Store& store, const std::string& save_id, Overwrite overwrite) {
  if (overwrite == Overwrite::kRefused && store.exists(kCommitRecordName))
    throw Error(ErrorCode::kAlreadyExists, "cannot begin save " + save_id + ": " + child_url(store.url(), kCommitRecordName) +
                                               " is there already. Nothing was changed");
}

std::uint64_t Store::link(const std::string& source, const ObjectName& name, bool /*is_durable*/) {
  throw Error(ErrorCode::kUnsupported, "cannot link " + child_url(url(), name) + " to " + source + ": this store has no links");
}

std::optional<ObjectEnd> Store::read_end(const ObjectName& name, std::size_t bytes_max) {
  if (!exists(name)) return std::nullopt;
  ObjectEnd end;
  end.object_bytes = size_bytes(name);
  end.content.resize(static_cast<std::size_t>(std::min<std::uint64_t>(end.object_bytes, bytes_max)));
  read(name, {{end.object_bytes - end.content.size(), {end.content.data(), end.content.size()}}});
  return end;
}

std::vector<ObjectName> Store::children() {
  std::vector<ObjectName> found;
  for (const ObjectInfo& object : list("")) {
    const std::size_t slash = object.name.find('/');
    if (slash == std::string::npos) continue;
    found.push_back(object.name.substr(0, slash));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

PlaceContents Store::contents() { return {list(), open_attempts(), fenced_attempts(), {}}; }

bool Store::has_attempt(const std::string& save_id) {
  check_attempt_id(save_id);
  const auto has = [&](const std::vector<std::string>& ids) { return std::find(ids.begin(), ids.end(), save_id) != ids.end(); };
  return has(open_attempts()) || has(fenced_attempts());
}

void Store::retract(const ObjectName& mark, const std::string& text) {
  create_mark(*this, mark, text);
  remove(kCommitRecordName);
}

void create_whole(Store& store, const ObjectName& name, const std::string& content) {
  CreateOptions options;
  options.expected_bytes = content.size();
  const auto writer = store.create(name, options);
  writer->write_at(0, content);
  writer->sync(content.size());
}

void create_mark(Store& store, const ObjectName& mark, const std::string& text) {
  if (mark.empty()) return;
  try {
    // The mark of an interrupted removal may be incomplete.
    const auto known = store.read_end(mark, text.size());
    const bool is_whole = known && known->object_bytes == text.size() && known->content == text;
    if (known && !is_whole) store.remove(mark);
    if (!is_whole) create_whole(store, mark, text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoSpace) throw;
  }
}

}  // namespace cairn
