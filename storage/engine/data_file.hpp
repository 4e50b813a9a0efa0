// Checks the length and the trailer of Cairn's data files when readers open them. Several reads of
// one checkpoint share a table of opened files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/format/trailer.hpp>
#include <cairn/storage/format/zstd_item.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Returns "" if a file of `actual` bytes has the recorded length. PyTorch records none; then any
// length will do. Otherwise says what is wrong. In both cases says if it is a pointer of Git LFS.
// Throws the store's errors.
std::string length_fault(Store& store, const FileInfo& file, std::uint64_t actual);
// Returns the length of the file. Throws kNotFound if it is missing, and kCorrupt if length_fault
// finds a fault. Does not ask the store if the length is `known`.
std::uint64_t check_file_length(Store& store, const FileInfo& file, std::optional<std::uint64_t> known = {});

// Checks the length of a file whose length and trailer length are in the commit record, and reads
// and checks its trailer.
// The block checksums must combine to the record's checksum of the whole file. A block that matches
// the trailer is therefore known to belong to this file. Throws kCorrupt, kUnsupported and the
// store's errors.
Trailer read_trailer(Store& store, const FileInfo& file);

// An opened data file. Without checks, `block_crc32` and `save_id` are empty.
struct DataFile : Trailer {
  std::shared_ptr<Store> store;  // has the file, sound by its length and trailer
};

// An item that is transformed, or in an archive of PyTorch, kept between two reads. If the item is
// read as a stream, the next read can continue where the last one ended.
struct OpenedItem {
  PlainItem item;
  std::shared_ptr<ZipReader::ReadAt> read_stored;  // `item` reads through it; each read sets its own function
};

// The data files of one checkpoint that were opened so far, by their index in the metadata. Also
// keeps some of their checked blocks: when many small tensors are read one after another, the next
// one is usually in the same block as the last one. Thread-safe.
class OpenedFiles {
 public:
  explicit OpenedFiles(std::uint64_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  std::shared_ptr<const DataFile> find(std::size_t file) const;  // null: not opened yet
  void add(std::size_t file, std::shared_ptr<const DataFile> opened);

  // Keeps a block whose checksum matched, and drops the oldest kept blocks beyond `kept_bytes_max`.
  void keep(std::size_t file, std::uint64_t block, ByteSpan bytes);
  std::shared_ptr<const Bytes> kept(std::size_t file, std::uint64_t block) const;  // null: not kept

  // Keeps one item, the last, until `take_item` is called with the same object `place`.
  void keep_item(const StorageInfo& place, OpenedItem item);
  std::optional<OpenedItem> take_item(const StorageInfo& place);

 private:
  using Place = std::pair<std::size_t, std::uint64_t>;  // file and block

  const std::uint64_t kept_bytes_max_;
  mutable Mutex mutex_;
  std::map<std::size_t, std::shared_ptr<const DataFile>> files_ CAIRN_GUARDED_BY(mutex_);
  std::map<Place, std::shared_ptr<const Bytes>> blocks_ CAIRN_GUARDED_BY(mutex_);
  std::deque<Place> oldest_first_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t kept_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  const StorageInfo* item_place_ CAIRN_GUARDED_BY(mutex_) = nullptr;
  std::optional<OpenedItem> item_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
