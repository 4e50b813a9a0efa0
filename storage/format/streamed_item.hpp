// Items that can be read only as streams, from front to back. Internal.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/formats/zip_reader.hpp>
#include <cairn/storage/stream_transform.hpp>

namespace cairn {

// Returns whether `descriptor` is `known` or a minor version of it ("stream.x/1.2" of
// "stream.x/1").
bool is_version_of(const std::string& descriptor, const std::string& known);

// Returns the registered transform that undoes `descriptor`, or nothing. Thread-safe.
std::optional<StreamTransform> find_stream_transform(const std::string& descriptor);

// Throw kCorrupt for the item `what`.
[[noreturn]] void throw_damaged(const std::string& what, const std::string& why);
[[noreturn]] void throw_too_large(const std::string& what, std::uint64_t bytes_max);

// Returns a stream of the `bytes` bytes that `read_at` reads.
ByteSource stream_of(std::uint64_t bytes, ZipReader::ReadAt read_at);

// Reads any part of a stream. Memory: a few MiB. Not thread-safe.
class StreamedItem {
 public:
  // `open` must return the stream from its start, each time it is called. The constructor reads the
  // whole stream once, to find its length. Throws kCorrupt if it has more than `bytes_max` bytes.
  // Error texts start with `what`.
  StreamedItem(std::function<ByteSource()> open, std::uint64_t bytes_max, std::string what);

  std::uint64_t size_bytes() const { return size_bytes_; }
  // Fills `to` with the bytes at `offset`. Continues from the last position in the stream; restarts
  // the stream if `offset` is before that. Throws kCorrupt.
  void read(std::uint64_t offset, MutableByteSpan to);

 private:
  std::size_t next(MutableByteSpan to);
  std::size_t read_part(std::uint64_t offset, MutableByteSpan to);
  void restart();

  const std::function<ByteSource()> open_;
  const std::string what_;
  std::uint64_t size_bytes_ = 0;
  ByteSource source_;
  std::uint64_t position_ = 0;  // of source_
  Bytes block_;
  Bytes head_;  // the first bytes
  Bytes tail_;  // the last bytes; empty if head_ has all
};

}  // namespace cairn
