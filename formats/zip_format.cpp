#include <cairn/formats/zip_format.hpp>

#include <algorithm>

#include <cairn/base/error.hpp>

namespace cairn::zip {
namespace {

// Byte by byte: zip is little-endian on every machine.
template <class Integer>
void put(Bytes& out, Integer value) {
  char bytes[sizeof(Integer)];
  for (std::size_t i = 0; i < sizeof(Integer); ++i) bytes[i] = static_cast<char>((value >> (8 * i)) & 0xff);
  out.append(bytes, sizeof(Integer));
}

template <class Integer>
Integer get(const char* at) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    value = static_cast<Integer>(value | static_cast<Integer>(static_cast<Integer>(static_cast<unsigned char>(at[i])) << (8 * i)));
  return value;
}

// PyTorch reads with miniz, which uses zip64 from this value on: the value means "see the zip64
// field".
bool needs_64(std::uint64_t value) { return value >= kSee64; }

constexpr std::uint16_t kVersionMadeBy = 0x031e;  // zip 3.0 on Unix, as miniz writes
constexpr std::uint16_t kVersionNeeded = 45;      // zip64

// An entry without data has no descriptor; all zeros in its header are its true values.
std::uint16_t flags_for(std::uint64_t size) { return static_cast<std::uint16_t>(kFlagUtf8 | (size == 0 ? 0 : kFlagDescriptor)); }

}  // namespace

void put_u16(Bytes& out, std::uint16_t value) { put(out, value); }
void put_u32(Bytes& out, std::uint32_t value) { put(out, value); }
void put_u64(Bytes& out, std::uint64_t value) { put(out, value); }
std::uint16_t get_u16(const char* at) { return get<std::uint16_t>(at); }
std::uint32_t get_u32(const char* at) { return get<std::uint32_t>(at); }
std::uint64_t get_u64(const char* at) { return get<std::uint64_t>(at); }

std::uint64_t local_header_length(std::string_view name, std::uint64_t size) {
  return kLocalHeaderBytes + name.size() + (needs_64(size) ? kExtraFieldHeaderBytes + 16 : 0);
}

std::uint64_t padding_for(std::uint64_t end, std::uint64_t alignment) {
  // The padding field has a header of its own, which counts as padding.
  const auto least = end + kExtraFieldHeaderBytes;
  return kExtraFieldHeaderBytes + ((~least + 1) & (alignment - 1));
}

void append_local_header(Bytes& out, std::string_view name, std::uint64_t size, std::uint64_t padding) {
  const std::uint64_t extra = local_header_length(name, size) - kLocalHeaderBytes - name.size() + padding;
  check_invariant(name.size() < kSee64Count && extra < kSee64Count, "a zip entry's name and extra fields fit in 16 bits");
  check_invariant(padding == 0 || padding >= kExtraFieldHeaderBytes, "a zip padding field has room for its header");
  put_u32(out, kLocalHeaderSignature);
  put_u16(out, 0);  // version needed: torch.save writes 0
  put_u16(out, flags_for(size));
  put_u16(out, 0);  // method: stored
  put_u32(out, 0);  // time and date: 0, so that equal content gives equal bytes
  put_u32(out, 0);  // CRC-32 and both sizes: in the descriptor
  put_u32(out, 0);
  put_u32(out, 0);
  put_u16(out, static_cast<std::uint16_t>(name.size()));
  put_u16(out, static_cast<std::uint16_t>(extra));
  out.append(name);
  if (needs_64(size)) {
    put_u16(out, kZip64ExtraField);
    put_u16(out, 16);
    put_u64(out, size);
    put_u64(out, size);
  }
  if (padding > 0) {
    put_u16(out, kPaddingExtraField);
    put_u16(out, static_cast<std::uint16_t>(padding - kExtraFieldHeaderBytes));
    out.append(padding - kExtraFieldHeaderBytes, '\0');
  }
}

// Signature, CRC-32 and two sizes, of 4 or 8 bytes each.
std::uint64_t descriptor_length(std::uint64_t size) { return size == 0 ? 0 : needs_64(size) ? 24 : 16; }

void append_descriptor(Bytes& out, std::uint64_t size, std::uint32_t crc32) {
  if (size == 0) return;
  put_u32(out, kDescriptorSignature);
  put_u32(out, crc32);
  for (int i = 0; i < 2; ++i) {  // compressed size, size
    if (needs_64(size)) {
      put_u64(out, size);
    } else {
      put_u32(out, static_cast<std::uint32_t>(size));
    }
  }
}

std::uint64_t directory_entry_length(std::string_view name, std::uint64_t size, std::uint64_t header_offset) {
  const std::uint64_t values = (needs_64(size) ? 16 : 0) + (needs_64(header_offset) ? 8 : 0);
  return kDirectoryHeaderBytes + name.size() + (values > 0 ? kExtraFieldHeaderBytes + values : 0);
}

// Repeats all entries with their positions. Readers begin here, because only the end of an archive
// is at a known place.
void append_directory(Bytes& out, const std::vector<Entry>& entries, std::uint64_t directory_offset) {
  const auto begin = out.size();
  const auto capped = [](std::uint64_t value) { return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, kSee64)); };
  for (const auto& entry : entries) {
    const auto extra =
        directory_entry_length(entry.name, entry.size, entry.header_offset) - kDirectoryHeaderBytes - entry.name.size();
    put_u32(out, kDirectoryHeaderSignature);
    put_u16(out, 0);  // version made by
    put_u16(out, 0);  // version needed
    put_u16(out, flags_for(entry.size));
    put_u16(out, 0);  // method: stored
    put_u32(out, 0);  // time and date
    put_u32(out, entry.crc32);
    put_u32(out, capped(entry.size));
    put_u32(out, capped(entry.size));
    put_u16(out, static_cast<std::uint16_t>(entry.name.size()));
    put_u16(out, static_cast<std::uint16_t>(extra));
    put_u16(out, 0);  // comment
    put_u16(out, 0);  // disk
    put_u16(out, 0);  // internal attributes
    put_u32(out, 0);  // external attributes
    put_u32(out, capped(entry.header_offset));
    out.append(entry.name);
    if (extra > 0) {
      put_u16(out, kZip64ExtraField);
      put_u16(out, static_cast<std::uint16_t>(extra - kExtraFieldHeaderBytes));
      if (needs_64(entry.size)) {
        put_u64(out, entry.size);
        put_u64(out, entry.size);
      }
      if (needs_64(entry.header_offset)) put_u64(out, entry.header_offset);
    }
  }
  const std::uint64_t directory_size = out.size() - begin;
  // Written for small archives as well, as torch.save does.
  put_u32(out, kEnd64Signature);
  put_u64(out, kEnd64Bytes - 12);  // size of the record after this field
  put_u16(out, kVersionMadeBy);
  put_u16(out, kVersionNeeded);
  put_u32(out, 0);  // this disk
  put_u32(out, 0);  // the directory's disk
  put_u64(out, entries.size());
  put_u64(out, entries.size());
  put_u64(out, directory_size);
  put_u64(out, directory_offset);

  put_u32(out, kEnd64LocatorSignature);
  put_u32(out, 0);  // disk of the zip64 end record
  put_u64(out, directory_offset + directory_size);
  put_u32(out, 1);  // disks

  const auto count = static_cast<std::uint16_t>(std::min<std::uint64_t>(entries.size(), kSee64Count));
  put_u32(out, kEndSignature);
  put_u16(out, 0);
  put_u16(out, 0);
  put_u16(out, count);
  put_u16(out, count);
  put_u32(out, capped(directory_size));
  put_u32(out, capped(directory_offset));
  put_u16(out, 0);  // comment
}

}  // namespace cairn::zip
