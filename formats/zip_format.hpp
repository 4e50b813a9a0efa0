// The subset of the zip format that torch.save uses: entries are stored, never compressed; sizes of
// 4 GiB and more use zip64.
//
// An entry's CRC-32 and sizes follow its data, in a data descriptor (zip's general purpose bit 3),
// so that the data can be written before its CRC-32 is known. Every archive, even a small one, ends
// with zip64 end records, as those of torch.save do. All integers are little-endian. Functions are
// pure and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/base/bytes.hpp>

namespace cairn::zip {

inline constexpr std::uint32_t kLocalHeaderSignature = 0x04034b50;
inline constexpr std::uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr std::uint32_t kDirectoryHeaderSignature = 0x02014b50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;
inline constexpr std::uint32_t kEnd64LocatorSignature = 0x07064b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;

inline constexpr std::size_t kLocalHeaderBytes = 30;      // without name and extra fields
inline constexpr std::size_t kDirectoryHeaderBytes = 46;  // without name, extra fields and comment
inline constexpr std::size_t kEnd64Bytes = 56;
inline constexpr std::size_t kEnd64LocatorBytes = 20;
inline constexpr std::size_t kEndBytes = 22;  // without comment
inline constexpr std::size_t kExtraFieldHeaderBytes = 4;

inline constexpr std::uint16_t kZip64ExtraField = 0x0001;
inline constexpr std::uint16_t kPaddingExtraField = 0x4246;  // "FB": torch.save aligns data with it

inline constexpr std::uint16_t kFlagEncrypted = 0x0001;
inline constexpr std::uint16_t kFlagDescriptor = 0x0008;
inline constexpr std::uint16_t kFlagUtf8 = 0x0800;

// In a 16-bit or 32-bit field, these values mean that a zip64 record holds the actual value.
inline constexpr std::uint16_t kSee64Count = 0xffff;
inline constexpr std::uint32_t kSee64 = 0xffffffff;

// Append and read little-endian integers.
void put_u16(Bytes& out, std::uint16_t value);
void put_u32(Bytes& out, std::uint32_t value);
void put_u64(Bytes& out, std::uint64_t value);
std::uint16_t get_u16(const char* at);
std::uint32_t get_u32(const char* at);
std::uint64_t get_u64(const char* at);

// An entry to write.
struct Entry {
  std::string name;                 // including the archive's own folder: "archive/data.pkl"
  std::uint64_t header_offset = 0;  // its local header begins here, counted from the start of the archive
  std::uint64_t size = 0;           // bytes of its data
  std::uint32_t crc32 = 0;          // covers its data
};

// Returns the minimum length of a local header, without padding.
std::uint64_t local_header_length(std::string_view name, std::uint64_t size);
// Returns the size in bytes of the padding field, with its header, that moves the end of a local
// header from `end` to a multiple of `alignment`, a power of two: kExtraFieldHeaderBytes to
// alignment + 3.
std::uint64_t padding_for(std::uint64_t end, std::uint64_t alignment);
// Appends a local header. `padding` is the size in bytes of the padding field, including the
// field's header: 0, or at least kExtraFieldHeaderBytes.
void append_local_header(Bytes& out, std::string_view name, std::uint64_t size, std::uint64_t padding);

// The data descriptor of an entry with `size` bytes of data. An entry without data has none.
std::uint64_t descriptor_length(std::uint64_t size);
void append_descriptor(Bytes& out, std::uint64_t size, std::uint32_t crc32);

// `append_directory` appends the central directory and the end records. The directory begins
// `directory_offset` bytes after the start of the archive.
std::uint64_t directory_entry_length(std::string_view name, std::uint64_t size, std::uint64_t header_offset);
inline constexpr std::uint64_t kEndRecordsBytes = kEnd64Bytes + kEnd64LocatorBytes + kEndBytes;
void append_directory(Bytes& out, const std::vector<Entry>& entries, std::uint64_t directory_offset);

}  // namespace cairn::zip
