#include <cairn/storage/format/zstd_item.hpp>

#ifdef CAIRN_WITH_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>

#include <cairn/base/error.hpp>
#include <cairn/storage/format/item_archive.hpp>

namespace cairn {
namespace {

// Numbers of the zstd seekable format.
constexpr std::uint32_t kSkippableMagic = 0x184D2A5E;
constexpr std::uint32_t kSeekableMagic = 0x8F92EAB1;
constexpr std::size_t kSkippableHeaderBytes = 8;
constexpr std::size_t kSeekFooterBytes = 9;
constexpr std::size_t kSeekEntryBytes = 8;
constexpr unsigned char kSeekChecksums = 0x80;  // each entry has 4 bytes more
constexpr unsigned char kSeekReserved = 0x7C;

// Returns a limit on the size of an item before compression. A larger one is not what its metadata
// say.
std::uint64_t plain_bytes_max(std::uint64_t stored_bytes, DType dtype, const Extents* chunk_sizes) {
  constexpr std::uint64_t kRatioMax = 1000;  // zstd could expand an item to 30,000 times its length
  constexpr std::uint64_t kRoom = 64u << 20;
  if (chunk_sizes != nullptr && element_size(dtype) > 0) return item_layout(dtype, *chunk_sizes, 0).total_bytes() + kRoom;
  return std::min(stored_bytes, (std::uint64_t{1} << 53)) * kRatioMax + kRoom;
}

void append_u32(Bytes& to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

std::string why_not_undone(const std::vector<std::string>& transforms) {
  if (transforms.empty()) return "";
  std::string names;
  for (const std::string& transform : transforms) names += (names.empty() ? "" : ", ") + transform;
  // PyTorch reads any minor version, too.
  const bool is_zstd =
      transforms.size() == 1 && (names == kZstdTransform || names.rfind(kZstdTransform + std::string("."), 0) == 0);
  if (!is_zstd)
    return "it is stored through the " + std::string(transforms.size() == 1 ? "transform " : "transforms ") + names +
           ", which Cairn cannot undo: it knows " + kZstdTransform + " alone";
#ifdef CAIRN_WITH_ZSTD
  return "";
#else
  return "it is stored through the transform " + names +
         ", which this build of Cairn cannot undo: build it with CAIRN_WITH_ZSTD=ON";
#endif
}

PlainItem undo_transforms(const StorageInfo& storage, DType dtype, const Extents* chunk_sizes, ZipReader::ReadAt read_stored,
                          const std::string& what) {
  if (storage.transforms.empty()) return {storage.length, std::move(read_stored)};
  if (const std::string reason = why_not_undone(storage.transforms); !reason.empty())
    throw Error(ErrorCode::kUnsupported, what + ": " + reason);
  const auto item =
      std::make_shared<ZstdItem>(storage.length, std::move(read_stored), plain_bytes_max(storage.length, dtype, chunk_sizes), what);
  return {item->size_bytes(), [item](std::uint64_t offset, MutableByteSpan to) { item->read(offset, to); }};
}

Bytes encode_seek_table(const std::vector<ZstdFrame>& frames) {
  Bytes table;
  append_u32(table, kSkippableMagic);
  append_u32(table, static_cast<std::uint32_t>(frames.size() * kSeekEntryBytes + kSeekFooterBytes));
  for (const ZstdFrame& frame : frames) {
    append_u32(table, frame.stored_bytes);
    append_u32(table, frame.bytes);
  }
  append_u32(table, static_cast<std::uint32_t>(frames.size()));
  table.push_back('\0');  // no checksums here: each frame has its own
  append_u32(table, kSeekableMagic);
  return table;
}

#ifdef CAIRN_WITH_ZSTD

namespace {

constexpr std::uint32_t kFrameBytesMax = 4u << 20;  // larger frames are streamed
constexpr std::size_t kStreamBlockBytes = 1u << 20;
constexpr int kWindowLogMax = 23;  // levels up to 19 need no more

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

std::uint32_t u32_at(const char* at) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(at[i])} << (8 * i);
  return value;
}

}  // namespace

class ZstdItem::Implementation {
 public:
  Implementation(std::uint64_t stored_bytes, ZipReader::ReadAt read_at, std::uint64_t bytes_max, std::string what)
      : stored_bytes_(stored_bytes), read_at_(std::move(read_at)), bytes_max_(bytes_max), what_(std::move(what)) {
    if (!context_) throw std::bad_alloc();
    check(ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kWindowLogMax));
    if (!read_seek_table()) scan();
  }

  std::uint64_t size_bytes() const { return size_bytes_; }

  void read(std::uint64_t offset, MutableByteSpan to) {
    if (to.size() > size_bytes_ || offset > size_bytes_ - to.size()) corrupt("bytes beyond its end are asked for");
    while (!to.empty()) {
      const std::size_t length = frames_.empty() ? read_stream(offset, to) : read_frame(offset, to);
      offset += length;
      to = to.subspan(length, to.size() - length);
    }
  }

 private:
  struct Frame {
    std::uint64_t stored_begin = 0;
    std::uint64_t begin = 0;  // before compression
    ZstdFrame lengths;
  };

  [[noreturn]] void corrupt(const std::string& why) const { throw Error(ErrorCode::kCorrupt, what_ + " is damaged: " + why); }
  [[noreturn]] void too_large() const {
    corrupt("it expands to more than " + std::to_string(bytes_max_) + " bytes, which its metadata rule out");
  }
  std::size_t check(std::size_t result) const {
    if (!ZSTD_isError(result)) return result;
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
      throw Error(ErrorCode::kUnsupported, what_ + " was compressed with a window of more than " +
                                               std::to_string((1u << kWindowLogMax) >> 20) + " MiB: compress it at a level up to " +
                                               std::to_string(kZstdLevelMax));
    corrupt(std::string("zstd reports \"") + ZSTD_getErrorName(result) + "\"");
  }

  // Returns false if the item has no seek table, or one that would take much memory.
  bool read_seek_table() {
    if (stored_bytes_ < kSkippableHeaderBytes + kSeekFooterBytes) return false;
    char footer[kSeekFooterBytes];
    read_at_(stored_bytes_ - kSeekFooterBytes, {footer, sizeof(footer)});
    if (u32_at(footer + 5) != kSeekableMagic) return false;
    const std::uint64_t count = u32_at(footer);
    const auto descriptor = static_cast<unsigned char>(footer[4]);
    const std::size_t entry_bytes = kSeekEntryBytes + ((descriptor & kSeekChecksums) != 0 ? 4 : 0);
    const std::uint64_t table_bytes = kSkippableHeaderBytes + count * entry_bytes + kSeekFooterBytes;
    // Frames without a kilobyte each would make the table larger than what it is good for.
    if ((descriptor & kSeekReserved) != 0 || count == 0 || count > bytes_max_ / 1024 || table_bytes > stored_bytes_) return false;
    const std::uint64_t table_begin = stored_bytes_ - table_bytes;
    Bytes table(static_cast<std::size_t>(table_bytes - kSeekFooterBytes), '\0');
    read_at_(table_begin, {table.data(), table.size()});
    if (u32_at(table.data()) != kSkippableMagic || u32_at(table.data() + 4) != table_bytes - kSkippableHeaderBytes) return false;

    std::vector<Frame> frames(static_cast<std::size_t>(count));
    std::uint64_t stored_end = 0;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const char* at = table.data() + kSkippableHeaderBytes + i * entry_bytes;
      frames[i] = {stored_end, size_bytes_, {u32_at(at), u32_at(at + 4)}};
      const ZstdFrame& lengths = frames[i].lengths;
      if (lengths.bytes > kFrameBytesMax) {
        size_bytes_ = 0;
        return false;
      }
      if (lengths.stored_bytes > ZSTD_compressBound(lengths.bytes) + kSkippableHeaderBytes)
        corrupt("a frame is longer than its content");
      stored_end += lengths.stored_bytes;
      size_bytes_ += lengths.bytes;
    }
    if (stored_end != table_begin) corrupt("its seek table does not describe all of it");
    if (size_bytes_ > bytes_max_) too_large();
    frames_ = std::move(frames);
    return true;
  }

  // Returns the number of bytes read: those of one frame.
  std::size_t read_frame(std::uint64_t offset, MutableByteSpan to) {
    const auto after =
        std::partition_point(frames_.begin(), frames_.end(), [&](const Frame& frame) { return frame.begin <= offset; });
    const Frame& frame = *(after - 1);
    const auto from = static_cast<std::size_t>(offset - frame.begin);
    const std::size_t length = std::min<std::size_t>(to.size(), frame.lengths.bytes - from);
    if (length == frame.lengths.bytes) {
      decompress(frame, to);
      return length;
    }
    if (loaded_ != &frame) {
      loaded_ = nullptr;
      block_.resize(frame.lengths.bytes);
      decompress(frame, {block_.data(), block_.size()});
      loaded_ = &frame;
    }
    std::memcpy(to.data(), block_.data() + from, length);
    return length;
  }

  void decompress(const Frame& frame, MutableByteSpan to) {
    stored_.resize(frame.lengths.stored_bytes);
    read_at_(frame.stored_begin, {stored_.data(), stored_.size()});
    const std::size_t length =
        check(ZSTD_decompressDCtx(context_.get(), to.data(), frame.lengths.bytes, stored_.data(), stored_.size()));
    if (length != frame.lengths.bytes) corrupt("a frame is shorter than its seek table says");
  }

  // Decompresses everything once to learn its size. Keeps both ends: the directory of an archive is
  // at its end, and its first entries are at its start.
  void scan() {
    restart();
    block_.resize(kStreamBlockBytes);
    while (const std::size_t length = next({block_.data(), block_.size()})) {
      if (position_ > bytes_max_) too_large();
      if (head_.empty()) {
        head_.assign(block_.data(), length);
      } else {
        if (tail_.size() > kStreamBlockBytes) tail_.erase(0, kStreamBlockBytes);
        tail_.append(block_.data(), length);
      }
    }
    size_bytes_ = position_;
  }

  void restart() {
    check(ZSTD_DCtx_reset(context_.get(), ZSTD_reset_session_only));
    input_ = {};
    stored_position_ = position_ = 0;
    in_frame_ = false;
  }

  std::size_t read_stream(std::uint64_t offset, MutableByteSpan to) {
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
      if (next({block_.data(), skipped}) != skipped) corrupt("it changed while it was read");
    }
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), tail_begin - offset));
    if (next(to.subspan(0, length)) != length) corrupt("it changed while it was read");
    return length;
  }

  // Decompresses the next bytes of the stream. Returns fewer than `to` has only at the end.
  std::size_t next(MutableByteSpan to) {
    ZSTD_outBuffer output{to.data(), to.size(), 0};
    while (output.pos < output.size) {
      if (input_.pos == input_.size && stored_position_ < stored_bytes_) {
        stored_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(ZSTD_DStreamInSize(), stored_bytes_ - stored_position_)));
        read_at_(stored_position_, {stored_.data(), stored_.size()});
        input_ = {stored_.data(), stored_.size(), 0};
        if (stored_position_ == 0) check_declared_size();
        stored_position_ += stored_.size();
      }
      const bool at_end = input_.pos == input_.size;
      if (at_end && !in_frame_) break;
      const std::size_t before = output.pos;
      in_frame_ = check(ZSTD_decompressStream(context_.get(), &output, &input_)) != 0;
      if (at_end && in_frame_ && output.pos == before) corrupt("it ends within a zstd frame");
    }
    position_ += output.pos;
    return output.pos;
  }

  void check_declared_size() const {
    const unsigned long long declared = ZSTD_getFrameContentSize(stored_.data(), stored_.size());
    if (declared != ZSTD_CONTENTSIZE_UNKNOWN && declared != ZSTD_CONTENTSIZE_ERROR && declared > bytes_max_) too_large();
  }

  const std::uint64_t stored_bytes_;
  const ZipReader::ReadAt read_at_;
  const std::uint64_t bytes_max_;
  const std::string what_;
  const std::unique_ptr<ZSTD_DCtx, FreeContext> context_{ZSTD_createDCtx()};
  std::uint64_t size_bytes_ = 0;
  Bytes stored_;  // a part of the item as it is stored
  Bytes block_;   // a part of the item before compression

  // With a seek table:
  std::vector<Frame> frames_;
  const Frame* loaded_ = nullptr;  // in block_

  // Without:
  ZSTD_inBuffer input_{};              // the rest of stored_
  std::uint64_t stored_position_ = 0;  // of the end of stored_
  std::uint64_t position_ = 0;         // before compression
  bool in_frame_ = false;
  Bytes head_;  // the first bytes
  Bytes tail_;  // the last bytes; empty if head_ has all
};

ZstdItem::ZstdItem(std::uint64_t stored_bytes, ZipReader::ReadAt read_at, std::uint64_t bytes_max, std::string what)
    : implementation_(std::make_unique<Implementation>(stored_bytes, std::move(read_at), bytes_max, std::move(what))) {}
ZstdItem::~ZstdItem() = default;
std::uint64_t ZstdItem::size_bytes() const { return implementation_->size_bytes(); }
void ZstdItem::read(std::uint64_t offset, MutableByteSpan to) { implementation_->read(offset, to); }

class ZstdCompressor::Implementation {
 public:
  explicit Implementation(int level) {
    if (!context_) throw std::bad_alloc();
    check(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, level));
    check(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1));
  }
  std::size_t compress(ByteSpan from, MutableByteSpan to) {
    return check(ZSTD_compress2(context_.get(), to.data(), to.size(), from.data(), from.size()));
  }

 private:
  static std::size_t check(std::size_t result) {
    if (!ZSTD_isError(result)) return result;
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    throw InternalError(std::string("zstd cannot compress: ") + ZSTD_getErrorName(result));
  }
  const std::unique_ptr<ZSTD_CCtx, FreeContext> context_{ZSTD_createCCtx()};
};

ZstdCompressor::ZstdCompressor(int level) {
  if (level < 1 || level > kZstdLevelMax)
    throw Error(ErrorCode::kInvalidArgument, "zstd_level is " + std::to_string(level) + ": use 1 to " +
                                                 std::to_string(kZstdLevelMax) + ", or 0 to store tensors uncompressed");
  implementation_ = std::make_unique<Implementation>(level);
}
ZstdCompressor::~ZstdCompressor() = default;
std::size_t ZstdCompressor::frame_bytes_max(std::size_t bytes) { return ZSTD_compressBound(bytes); }
std::size_t ZstdCompressor::compress(ByteSpan from, MutableByteSpan to) { return implementation_->compress(from, to); }

#else  // without zstd

namespace {
[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported, "this build of Cairn has no zstd: build it with CAIRN_WITH_ZSTD=ON");
}
}  // namespace

class ZstdItem::Implementation {};
ZstdItem::ZstdItem(std::uint64_t, ZipReader::ReadAt, std::uint64_t, std::string) { refuse(); }
ZstdItem::~ZstdItem() = default;
std::uint64_t ZstdItem::size_bytes() const { return 0; }
void ZstdItem::read(std::uint64_t, MutableByteSpan) { refuse(); }

class ZstdCompressor::Implementation {};
ZstdCompressor::ZstdCompressor(int) { refuse(); }
ZstdCompressor::~ZstdCompressor() = default;
std::size_t ZstdCompressor::frame_bytes_max(std::size_t bytes) { return bytes; }
std::size_t ZstdCompressor::compress(ByteSpan, MutableByteSpan) { refuse(); }

#endif

}  // namespace cairn
