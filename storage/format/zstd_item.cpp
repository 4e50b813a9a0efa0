#include <cairn/storage/format/zstd_item.hpp>

#ifdef CAIRN_WITH_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <optional>

#include <cairn/base/error.hpp>
#include <cairn/formats/item_archive.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/storage/format/streamed_item.hpp>

namespace cairn {
namespace {

// Numbers of the zstd seekable format.
constexpr std::uint32_t kSkippableMagic = 0x184D2A5E;
constexpr std::uint32_t kSeekableMagic = 0x8F92EAB1;
[[maybe_unused]] constexpr std::size_t kSkippableHeaderBytes = 8;
constexpr std::size_t kSeekFooterBytes = 9;
constexpr std::size_t kSeekEntryBytes = 8;
[[maybe_unused]] constexpr unsigned char kSeekChecksums = 0x80;  // each entry has 4 bytes more
[[maybe_unused]] constexpr unsigned char kSeekReserved = 0x7C;

// Returns a limit on the size of an item before compression. A larger one is not what its metadata
// say.
std::uint64_t plain_bytes_max(std::uint64_t stored_bytes, DType dtype, const Extents* chunk_sizes) {
  constexpr std::uint64_t kRatioMax = 1000;  // zstd could expand an item to 30,000 times its length
  constexpr std::uint64_t kRoom = 64u << 20;
  if (chunk_sizes != nullptr && element_size(dtype) > 0) return item_layout(dtype, *chunk_sizes, 0).total_bytes() + kRoom;
  return std::min(stored_bytes, (std::uint64_t{1} << 53)) * kRatioMax + kRoom;
}

// PyTorch reads any minor version, too.
bool is_zstd(const std::string& transform) { return is_version_of(transform, kZstdTransform); }

}  // namespace

std::string why_not_undone(const std::vector<std::string>& transforms) {
  const std::string through = "it is stored through the transform ";
  for (const std::string& transform : transforms) {
    if (is_zstd(transform)) {
#ifndef CAIRN_WITH_ZSTD
      return through + transform + ", which this build of Cairn cannot undo: build it with CAIRN_WITH_ZSTD=ON";
#endif
    } else if (!find_stream_transform(transform)) {
      return through + transform + ", which Cairn cannot undo: it knows " + kZstdTransform +
             ", and those that the program registers with register_stream_transform";
    }
  }
  return "";
}

// Checks what a source of the program returns, and asks it no more after its end: it may have
// finished what it holds.
static ByteSource checked(ByteSource source, const std::string& transform, const std::string& what) {
  return [source = std::move(source), transform, what, has_ended = false](MutableByteSpan to) mutable {
    if (has_ended || to.empty()) return std::size_t{0};
    const std::size_t length = source(to);
    if (length > to.size())
      throw Error(ErrorCode::kInternal, what + ": the stream transform " + transform + " returned more bytes than were asked for");
    has_ended = length == 0;
    return length;
  };
}

PlainItem undo_transforms(const StorageInfo& storage, DType dtype, const Extents* chunk_sizes, ZipReader::ReadAt read_stored,
                          const std::string& what) {
  if (storage.transforms.empty()) return {storage.length, std::move(read_stored)};
  if (const std::string reason = why_not_undone(storage.transforms); !reason.empty())
    throw Error(ErrorCode::kUnsupported, what + ": " + reason);
  if (storage.length <= kZstdFrameBytes) {
    // One read instead of one for each of seek table, directory, header and elements.
    Bytes all(static_cast<std::size_t>(storage.length), '\0');
    read_stored(0, {all.data(), all.size()});
    read_stored = [all = std::make_shared<const Bytes>(std::move(all))](std::uint64_t offset, MutableByteSpan to) {
      std::memcpy(to.data(), all->data() + offset, to.size());
    };
  }
  const std::uint64_t bytes_max = plain_bytes_max(storage.length, dtype, chunk_sizes);
  if (storage.transforms.size() == 1 && is_zstd(storage.transforms.front()))
    return zstd_item(storage.length, std::move(read_stored), bytes_max, what);
  std::vector<std::function<ByteSource(ByteSource)>> steps;
  for (const std::string& transform : storage.transforms)
    if (is_zstd(transform))
      steps.push_back([what](ByteSource stored) { return zstd_stream(std::move(stored), what); });
    else
      steps.push_back([undo = find_stream_transform(transform)->transform_from, transform, what](ByteSource stored) {
        return checked(undo(std::move(stored)), transform, what);
      });
  const auto open = [steps = std::move(steps), bytes = storage.length, read_stored = std::move(read_stored)] {
    ByteSource source = stream_of(bytes, read_stored);
    for (const auto& step : steps) source = step(std::move(source));
    return source;
  };
  const auto item = std::make_shared<StreamedItem>(open, bytes_max, what);
  return {item->size_bytes(), [item](std::uint64_t offset, MutableByteSpan to) { item->read(offset, to); }};
}

Bytes encode_seek_table(const std::vector<ZstdFrame>& frames) {
  Bytes table;
  zip::put_u32(table, kSkippableMagic);
  zip::put_u32(table, static_cast<std::uint32_t>(frames.size() * kSeekEntryBytes + kSeekFooterBytes));
  for (const ZstdFrame& frame : frames) {
    zip::put_u32(table, frame.stored_bytes);
    zip::put_u32(table, frame.bytes);
  }
  zip::put_u32(table, static_cast<std::uint32_t>(frames.size()));
  table.push_back('\0');  // no checksums here: each frame has its own
  zip::put_u32(table, kSeekableMagic);
  return table;
}

#ifdef CAIRN_WITH_ZSTD

namespace {

constexpr std::uint32_t kFrameBytesMax = 4u << 20;  // larger frames are streamed
constexpr int kWindowLogMax = 23;                   // levels up to 19 need no more

// Decompresses frames, or a stream of them. Not thread-safe.
class Decompressor {
 public:
  explicit Decompressor(std::string what) : what_(std::move(what)) {
    if (!context_) throw std::bad_alloc();
    check(ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kWindowLogMax));
  }

  std::size_t decompress(ByteSpan stored, MutableByteSpan to) {
    return check(ZSTD_decompressDCtx(context_.get(), to.data(), to.size(), stored.data(), stored.size()));
  }

  // Returns false at the end of a frame.
  bool decompress(ZSTD_outBuffer& output, ZSTD_inBuffer& input) {
    return check(ZSTD_decompressStream(context_.get(), &output, &input)) != 0;
  }

  const std::string& what() const { return what_; }

 private:
  std::size_t check(std::size_t result) const {
    if (!ZSTD_isError(result)) return result;
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
      throw Error(ErrorCode::kUnsupported, what_ + " was compressed with a window of more than " +
                                               std::to_string((1u << kWindowLogMax) >> 20) + " MiB: compress it at a level up to " +
                                               std::to_string(kZstdLevelMax));
    throw_damaged(what_, std::string("zstd reports \"") + ZSTD_getErrorName(result) + "\"");
  }

  const std::string what_;
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context_{ZSTD_createDCtx(), &ZSTD_freeDCtx};
};

class ZstdStream {
 public:
  ZstdStream(ByteSource stored, std::string what)
      : stored_(std::move(stored)), zstd_(std::move(what)), block_(ZSTD_DStreamInSize(), '\0') {}

  // Returns fewer bytes than `to` has only at the end.
  std::size_t read(MutableByteSpan to) {
    ZSTD_outBuffer output{to.data(), to.size(), 0};
    while (output.pos < output.size) {
      if (input_.pos == input_.size) input_ = {block_.data(), stored_({block_.data(), block_.size()}), 0};
      const bool at_end = input_.size == 0;
      if (at_end && !in_frame_) break;
      const std::size_t before = output.pos;
      in_frame_ = zstd_.decompress(output, input_);
      if (at_end && in_frame_ && output.pos == before) throw_damaged(zstd_.what(), "it ends within a zstd frame");
    }
    return output.pos;
  }

 private:
  const ByteSource stored_;
  Decompressor zstd_;
  Bytes block_;            // stored bytes
  ZSTD_inBuffer input_{};  // the rest of them
  bool in_frame_ = false;
};

// Reads a compressed item.
class ZstdItem {
 public:
  ZstdItem(std::uint64_t stored_bytes, ZipReader::ReadAt read_at, std::uint64_t bytes_max, std::string what)
      : stored_bytes_(stored_bytes), read_at_(std::move(read_at)), bytes_max_(bytes_max), zstd_(std::move(what)) {
    if (read_seek_table()) return;
    const auto open = [this] { return zstd_stream(stream_of(stored_bytes_, read_at_), zstd_.what()); };
    streamed_.emplace(open, bytes_max_, zstd_.what());
    size_bytes_ = streamed_->size_bytes();
  }

  std::uint64_t size_bytes() const { return size_bytes_; }

  void read(std::uint64_t offset, MutableByteSpan to) {
    if (streamed_) return streamed_->read(offset, to);
    if (to.size() > size_bytes_ || offset > size_bytes_ - to.size()) corrupt("bytes beyond its end are asked for");
    while (!to.empty()) {
      const std::size_t length = read_frame(offset, to);
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

  [[noreturn]] void corrupt(const std::string& why) const { throw_damaged(zstd_.what(), why); }

  // Returns false if the item has no seek table, or one that would take much memory.
  bool read_seek_table() {
    if (stored_bytes_ < kSkippableHeaderBytes + kSeekFooterBytes) return false;
    char footer[kSeekFooterBytes];
    read_at_(stored_bytes_ - kSeekFooterBytes, {footer, sizeof(footer)});
    if (zip::get_u32(footer + 5) != kSeekableMagic) return false;
    const std::uint64_t count = zip::get_u32(footer);
    const auto descriptor = static_cast<unsigned char>(footer[4]);
    const std::size_t entry_bytes = kSeekEntryBytes + ((descriptor & kSeekChecksums) != 0 ? 4 : 0);
    const std::uint64_t table_bytes = kSkippableHeaderBytes + count * entry_bytes + kSeekFooterBytes;
    // Frames without a kilobyte each would make the table larger than what it is good for.
    if ((descriptor & kSeekReserved) != 0 || count == 0 || count > bytes_max_ / 1024 || table_bytes > stored_bytes_) return false;
    const std::uint64_t table_begin = stored_bytes_ - table_bytes;
    Bytes table(static_cast<std::size_t>(table_bytes - kSeekFooterBytes), '\0');
    read_at_(table_begin, {table.data(), table.size()});
    if (zip::get_u32(table.data()) != kSkippableMagic || zip::get_u32(table.data() + 4) != table_bytes - kSkippableHeaderBytes)
      return false;

    std::vector<Frame> frames(static_cast<std::size_t>(count));
    std::uint64_t stored_end = 0;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const char* at = table.data() + kSkippableHeaderBytes + i * entry_bytes;
      frames[i] = {stored_end, size_bytes_, {zip::get_u32(at), zip::get_u32(at + 4)}};
      const ZstdFrame& lengths = frames[i].lengths;
      // Nothing would look at a frame that is said to be empty.
      if (lengths.bytes > kFrameBytesMax || (lengths.bytes == 0 && lengths.stored_bytes > 0)) {
        size_bytes_ = 0;
        return false;
      }
      if (lengths.stored_bytes > ZSTD_compressBound(lengths.bytes) + kSkippableHeaderBytes)
        corrupt("a frame is longer than its content");
      stored_end += lengths.stored_bytes;
      size_bytes_ += lengths.bytes;
    }
    if (stored_end != table_begin) corrupt("its seek table does not describe all of it");
    if (size_bytes_ > bytes_max_) throw_too_large(zstd_.what(), bytes_max_);
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
    if (zstd_.decompress(stored_, to.subspan(0, frame.lengths.bytes)) != frame.lengths.bytes)
      corrupt("a frame is shorter than its seek table says");
  }

  const std::uint64_t stored_bytes_;
  const ZipReader::ReadAt read_at_;
  const std::uint64_t bytes_max_;
  Decompressor zstd_;
  std::uint64_t size_bytes_ = 0;

  // With a seek table:
  std::vector<Frame> frames_;
  Bytes stored_;                   // a frame
  Bytes block_;                    // a frame before compression
  const Frame* loaded_ = nullptr;  // in block_

  std::optional<StreamedItem> streamed_;  // without one
};

}  // namespace

ByteSource zstd_stream(ByteSource stored, const std::string& what) {
  const auto stream = std::make_shared<ZstdStream>(std::move(stored), what);
  return [stream](MutableByteSpan to) { return stream->read(to); };
}

PlainItem zstd_item(std::uint64_t stored_bytes, ZipReader::ReadAt read_stored, std::uint64_t bytes_max, const std::string& what) {
  const auto item = std::make_shared<ZstdItem>(stored_bytes, std::move(read_stored), bytes_max, what);
  return {item->size_bytes(), [item](std::uint64_t offset, MutableByteSpan to) { item->read(offset, to); }};
}

static ZSTD_CCtx* compression(void* context) { return static_cast<ZSTD_CCtx*>(context); }

static std::size_t require_compressed(std::size_t result) {
  if (!ZSTD_isError(result)) return result;
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  throw InternalError(std::string("zstd cannot compress: ") + ZSTD_getErrorName(result));
}

ZstdCompressor::ZstdCompressor(int level) {
  if (level < 1 || level > kZstdLevelMax)
    throw Error(ErrorCode::kInvalidArgument, "zstd_level is " + std::to_string(level) + ": use 1 to " +
                                                 std::to_string(kZstdLevelMax) + ", or 0 to store tensors uncompressed");
  context_ = {ZSTD_createCCtx(), [](void* context) { ZSTD_freeCCtx(compression(context)); }};
  if (!context_) throw std::bad_alloc();
  require_compressed(ZSTD_CCtx_setParameter(compression(context_.get()), ZSTD_c_compressionLevel, level));
  require_compressed(ZSTD_CCtx_setParameter(compression(context_.get()), ZSTD_c_checksumFlag, 1));
}
std::size_t ZstdCompressor::frame_bytes_max(std::size_t bytes) { return ZSTD_compressBound(bytes); }
std::size_t ZstdCompressor::compress(ByteSpan from, MutableByteSpan to) {
  return require_compressed(ZSTD_compress2(compression(context_.get()), to.data(), to.size(), from.data(), from.size()));
}

#else  // without zstd

namespace {
[[noreturn]] void refuse_zstd() {
  throw Error(ErrorCode::kUnsupported, "this build of Cairn has no zstd: build it with CAIRN_WITH_ZSTD=ON");
}
}  // namespace

ByteSource zstd_stream(ByteSource, const std::string&) { refuse_zstd(); }

PlainItem zstd_item(std::uint64_t, ZipReader::ReadAt, std::uint64_t, const std::string&) { refuse_zstd(); }

ZstdCompressor::ZstdCompressor(int) { refuse_zstd(); }
std::size_t ZstdCompressor::frame_bytes_max(std::size_t bytes) { return bytes; }
std::size_t ZstdCompressor::compress(ByteSpan, MutableByteSpan) { refuse_zstd(); }

#endif

}  // namespace cairn
