#include <cairn/storage/format/streamed_item.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {
namespace {

constexpr std::size_t kStreamBlockBytes = 1u << 20;

struct Transforms {
  Mutex mutex;
  std::map<std::string, StreamTransform> by_descriptor CAIRN_GUARDED_BY(mutex);
};

// Never destroyed: loads may run while the process exits.
Transforms& transforms() {
  static Transforms* instance = new Transforms;
  return *instance;
}

}  // namespace

void register_stream_transform(const std::string& descriptor, StreamTransform transform) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw Error(code, "cannot register stream transform \"" + descriptor + "\": " + why);
  };
  const std::size_t slash = descriptor.find('/');
  // The limit is that of the commit record.
  if (slash == 0 || slash >= descriptor.size() - 1 || descriptor.find('/', slash + 1) != std::string::npos ||
      descriptor.size() > 256)
    refuse(ErrorCode::kInvalidArgument, "a descriptor is a name, '/' and a version, in at most 256 bytes");
  if (!transform.transform_to || !transform.transform_from) refuse(ErrorCode::kInvalidArgument, "one of its functions is empty");
  Transforms& known = transforms();
  MutexLock lock(known.mutex);
  if (is_version_of(descriptor, kZstdTransform) || !known.by_descriptor.emplace(descriptor, std::move(transform)).second)
    refuse(ErrorCode::kAlreadyExists, "it is registered already; choose another name or version");
}

bool is_version_of(const std::string& descriptor, const std::string& known) {
  return descriptor == known || descriptor.rfind(known + ".", 0) == 0;
}

std::optional<StreamTransform> find_stream_transform(const std::string& descriptor) {
  Transforms& known = transforms();
  MutexLock lock(known.mutex);
  if (const auto found = known.by_descriptor.find(descriptor); found != known.by_descriptor.end()) return found->second;
  for (const auto& [name, transform] : known.by_descriptor)
    if (is_version_of(descriptor, name)) return transform;
  return std::nullopt;
}

void throw_damaged(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::kCorrupt, what + " is damaged: " + why);
}

void throw_too_large(const std::string& what, std::uint64_t bytes_max) {
  throw_damaged(what, "it expands to more than " + std::to_string(bytes_max) + " bytes, which its metadata rule out");
}

ByteSource stream_of(std::uint64_t bytes, ZipReader::ReadAt read_at) {
  return [bytes, read_at = std::move(read_at), at = std::uint64_t{0}](MutableByteSpan to) mutable {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), bytes - at));
    if (length > 0) read_at(at, to.subspan(0, length));
    at += length;
    return length;
  };
}

// Keeps both ends: the directory of an archive is at its end, and its first entries are at its
// start.
StreamedItem::StreamedItem(std::function<ByteSource()> open, std::uint64_t bytes_max, std::string what)
    : open_(std::move(open)), what_(std::move(what)), block_(kStreamBlockBytes, '\0') {
  restart();
  for (std::size_t length = block_.size(); length == block_.size();) {
    length = next({block_.data(), block_.size()});
    if (position_ > bytes_max) throw_too_large(what_, bytes_max);
    if (head_.empty()) {
      head_.assign(block_.data(), length);
    } else {
      if (tail_.size() > kStreamBlockBytes) tail_.erase(0, kStreamBlockBytes);
      tail_.append(block_.data(), length);
    }
  }
  size_bytes_ = position_;
}

void StreamedItem::restart() {
  source_ = open_();
  position_ = 0;
}

void StreamedItem::read(std::uint64_t offset, MutableByteSpan to) {
  if (to.size() > size_bytes_ || offset > size_bytes_ - to.size()) throw_damaged(what_, "bytes beyond its end are asked for");
  while (!to.empty()) {
    const std::size_t length = read_part(offset, to);
    offset += length;
    to = to.subspan(length, to.size() - length);
  }
}

std::size_t StreamedItem::read_part(std::uint64_t offset, MutableByteSpan to) {
  const std::uint64_t tail_begin = size_bytes_ - tail_.size();
  if (offset < head_.size() || offset >= tail_begin) {
    const Bytes& kept = offset < head_.size() ? head_ : tail_;
    const auto from = static_cast<std::size_t>(offset < head_.size() ? offset : offset - tail_begin);
    const std::size_t length = std::min(to.size(), kept.size() - from);
    std::memcpy(to.data(), kept.data() + from, length);
    return length;
  }
  if (offset < position_) restart();
  while (position_ < offset) {
    const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(block_.size(), offset - position_));
    if (next({block_.data(), skipped}) != skipped) throw_damaged(what_, "it changed while it was read");
  }
  const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), tail_begin - offset));
  if (next(to.subspan(0, length)) != length) throw_damaged(what_, "it changed while it was read");
  return length;
}

// Returns fewer bytes than `to` has only at the end.
std::size_t StreamedItem::next(MutableByteSpan to) {
  std::size_t filled = 0;
  while (filled < to.size()) {
    const std::size_t length = source_(to.subspan(filled, to.size() - filled));
    check_invariant(length <= to.size() - filled, "a stream transform returned more bytes than were asked for");
    if (length == 0) break;
    filled += length;
  }
  position_ += filled;
  return filled;
}

}  // namespace cairn
