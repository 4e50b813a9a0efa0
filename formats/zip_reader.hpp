// Reads zip archives of uncompressed entries, as torch.save writes them, from any source of byte
// ranges. It does not trust the input: every entry must lie within the archive, and everything that
// zip stores twice, in the directory and beside the data, must agree. An archive whose checksums
// are all zero was written without any, as PyTorch does after `set_crc32_options(False)`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn {

class ZipReader {
 public:
  // Fills `destination` with the bytes at `offset` from the start of the archive. May throw. Never
  // called for bytes outside the archive.
  using ReadAt = std::function<void(std::uint64_t offset, MutableByteSpan destination)>;

  struct Entry {
    std::string name;
    std::uint64_t header_offset = 0;  // its local header begins here, counted from the start of the archive
    std::uint64_t size_bytes = 0;     // the size of its data
    std::optional<std::uint32_t> crc32;  // covers its data; absent if the archive has no checksums
  };

  // Reads and checks the directory of an archive of exactly `size_bytes` bytes. Error texts start
  // with `what`. Throws kCorrupt, and kUnsupported for compressed or encrypted entries, archives on
  // several disks, and torch.save's format of before PyTorch 1.6.
  ZipReader(std::uint64_t size_bytes, ReadAt read_at, std::string what);
  // Reads from memory, which must outlive the reader.
  ZipReader(ByteSpan archive, std::string what);

  const std::vector<Entry>& entries() const { return entries_; }
  // Returns whether its entries have checksums.
  bool has_checksums() const { return has_checksums_; }
  const Entry* find(std::string_view name) const;  // nullptr if there is none

  // Returns the offset of an entry's data from the start of the archive. Reads the entry's local
  // header and descriptor, and checks that both agree with the directory.
  std::uint64_t data_offset(const Entry& entry) const;
  // Returns the data of an entry. Throws kCorrupt if the CRC-32 is wrong.
  Bytes read(const Entry& entry) const;

  const std::string& what() const { return what_; }

 private:
  [[noreturn]] void corrupt(const std::string& why) const;
  [[noreturn]] void unsupported(const std::string& why) const;
  Bytes read_range(std::uint64_t offset, std::uint64_t length, const char* reading) const;
  void read_directory();
  void parse_directory(std::string_view directory, std::uint64_t count);
  void check_descriptor(const Entry& entry, std::uint64_t end_of_data, bool is_64) const;

  std::uint64_t size_bytes_;
  ReadAt read_at_;
  std::string what_;
  std::uint64_t directory_offset_ = 0;
  bool has_checksums_ = true;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace cairn
