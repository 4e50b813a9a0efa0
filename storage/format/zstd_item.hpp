// Items that are compressed with zstd, as PyTorch's extension ZStandard writes and reads them.
// Cairn writes frames of at most kZstdFrameBytes and after them the seek table of the zstd seekable
// format (storage/FORMAT.md, "Compressed items"), so that a part of an item can be read. PyTorch
// writes one frame, which is decompressed from its start.
//
// Without CAIRN_WITH_ZSTD, what compresses or decompresses throws kUnsupported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/zip_reader.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/stream_transform.hpp>

namespace cairn {

inline constexpr std::size_t kZstdFrameBytes = 1u << 20;        // before compression
inline constexpr int kZstdLevelMax = 19;                        // higher levels need memory that readers may refuse

// Returns why this program cannot undo `transforms`, naming one of them, or "" if it can.
std::string why_not_undone(const std::vector<std::string>& transforms);

// An item as it was before its transforms.
struct PlainItem {
  std::uint64_t size_bytes = 0;
  ZipReader::ReadAt read_at;  // not thread-safe if there are transforms
};

// Returns the item at `storage`, with its transforms undone. `read_stored` fills a buffer from an
// offset within the stored item, and is kept. `chunk_sizes` is null for a bytes object. Throws
// kCorrupt if the item is implausibly large: more than 64 MiB above the size of such a chunk or,
// for a bytes object, above 1000 times its stored length. Throws kUnsupported if this program
// cannot undo the transforms. Also throws as zstd_item does. An item whose only
// transform is zstd is read by its seek table, any other as a stream, from front to back. A stored
// item of at most kZstdFrameBytes is read into memory at once.
PlainItem undo_transforms(const StorageInfo& storage, DType dtype, const Extents* chunk_sizes, ZipReader::ReadAt read_stored,
                          const std::string& what);

// Returns a stream of the decompressed bytes of `stored`. Error texts start with `what`.
ByteSource zstd_stream(ByteSource stored, const std::string& what);

// Decompresses an item. `read_stored` fills a buffer from an offset within the stored item, and is
// kept. Throws kCorrupt if the item is damaged or has more than `bytes_max` bytes. Error texts
// start with `what`. If the item has no seek table, or has frames above 4 MiB, decompresses it
// once, and throws kUnsupported if a frame needs a window of more than 8 MiB. `read_at` of the
// result throws kCorrupt. With a seek table, it decompresses only the frames that it needs; without
// one, everything from the last position or from the start. Memory: a few MiB, and 24 bytes for
// each frame.
PlainItem zstd_item(std::uint64_t stored_bytes, ZipReader::ReadAt read_stored, std::uint64_t bytes_max, const std::string& what);

// Compresses frames. Not thread-safe.
class ZstdCompressor {
 public:
  // Throws kInvalidArgument unless `level` is between 1 and kZstdLevelMax.
  explicit ZstdCompressor(int level);

  // Returns the maximum length of a frame that holds `bytes` bytes.
  static std::size_t frame_bytes_max(std::size_t bytes);
  // Writes one frame, which contains its checksum, to the start of `to`, and returns its length.
  std::size_t compress(ByteSpan from, MutableByteSpan to);

 private:
  std::unique_ptr<void, void (*)(void*)> context_{nullptr, nullptr};  // of libzstd
};

// Lengths of a frame: in the file, and before compression.
struct ZstdFrame {
  std::uint32_t stored_bytes = 0;
  std::uint32_t bytes = 0;
};

// Returns the seek table that follows the frames of an item.
Bytes encode_seek_table(const std::vector<ZstdFrame>& frames);

}  // namespace cairn
