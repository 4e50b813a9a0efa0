#include <cairn/storage/engine/data_file.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>
#include <cairn/base/git_lfs.hpp>

namespace cairn {

std::string length_fault(Store& store, const FileInfo& file, std::uint64_t actual) {
  constexpr std::uint64_t kPointerBytesMax = 1024;
  if (file.length ? actual == *file.length : actual >= kPointerBytesMax) return "";
  std::string head(std::min<std::uint64_t>(actual, 8), '\0');
  if (!head.empty()) store.read(file.name, {{0, {head.data(), head.size()}}});
  const bool is_pointer = is_git_lfs_pointer(head);
  if (!file.length) return is_pointer ? kGitLfsPointer : "";
  return "the file has " + std::to_string(actual) + " bytes, " + std::to_string(*file.length) + " were written: " +
         (is_pointer ? kGitLfsPointer : actual < *file.length ? "it was cut short" : "it was extended");
}

std::uint64_t check_file_length(Store& store, const FileInfo& file, std::optional<std::uint64_t> known) {
  const std::uint64_t length = known ? *known : store.size_bytes(file.name);
  const std::string fault = length_fault(store, file, length);
  if (!fault.empty()) throw Error(ErrorCode::kCorrupt, child_url(store.url(), file.name) + ": " + fault);
  return length;
}

Trailer read_trailer(Store& store, const FileInfo& file) {
  const std::string object = child_url(store.url(), file.name);
  check_invariant(file.length && file.trailer_length, "only files of Cairn's have a trailer");
  // A file that was cut short is reported as such, and not as a read error at some offset.
  const auto end = store.read_end(file.name, *file.trailer_length);
  if (!end) throw Error(ErrorCode::kNotFound, "cannot read " + object + ": there is no such object");
  check_file_length(store, file, end->object_bytes);
  const ByteSpan bytes = end->content;
  Trailer trailer = decode_trailer(bytes, *file.length, object);
  // A valid trailer may belong to another file that was put in the place of this one.
  if (file.crc32 && whole_crc32(trailer, bytes) != *file.crc32)
    throw Error(ErrorCode::kCorrupt, object + " is not the file that was written: by the checksums in its trailer, it has other " +
                                         "content than the commit record says. It was exchanged for another file since");
  return trailer;
}

std::shared_ptr<const DataFile> OpenedFiles::find(std::size_t file) const {
  MutexLock lock(mutex_);
  const auto found = files_.find(file);
  return found == files_.end() ? nullptr : found->second;
}

void OpenedFiles::add(std::size_t file, std::shared_ptr<const DataFile> opened) {
  MutexLock lock(mutex_);
  files_[file] = std::move(opened);
}

void OpenedFiles::keep(std::size_t file, std::uint64_t block, ByteSpan bytes) {
  // A block above the limit would displace all others and then itself.
  if (bytes.size() > kept_bytes_max_) return;
  auto copy = std::make_shared<const Bytes>(bytes.view());
  MutexLock lock(mutex_);
  if (!blocks_.emplace(Place{file, block}, std::move(copy)).second) return;
  oldest_first_.emplace_back(file, block);
  kept_bytes_ += bytes.size();
  // Oldest first: tools read the tensors of a file in order.
  while (kept_bytes_ > kept_bytes_max_) {
    const auto oldest = blocks_.find(oldest_first_.front());
    kept_bytes_ -= oldest->second->size();
    blocks_.erase(oldest);
    oldest_first_.pop_front();
  }
}

void OpenedFiles::keep_item(const StorageInfo& place, OpenedItem item) {
  std::optional<OpenedItem> kept(std::move(item));  // the item before it is destroyed after the lock is released
  MutexLock lock(mutex_);
  item_.swap(kept);
  item_place_ = &place;
}

std::optional<OpenedItem> OpenedFiles::take_item(const StorageInfo& place) {
  std::optional<OpenedItem> taken;
  MutexLock lock(mutex_);
  if (item_place_ == &place) taken.swap(item_);
  return taken;
}

std::shared_ptr<const Bytes> OpenedFiles::kept(std::size_t file, std::uint64_t block) const {
  MutexLock lock(mutex_);
  const auto found = blocks_.find({file, block});
  return found == blocks_.end() ? nullptr : found->second;
}

}  // namespace cairn
