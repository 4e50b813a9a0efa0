#include <cairn/formats/zip_reader.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/git_lfs.hpp>
#include <cairn/formats/unicode.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {

using namespace zip;

namespace {

constexpr std::uint64_t kCommentBytesMax = 0xffff;
// The end record lies within this many bytes of the end.
constexpr std::uint64_t kTailBytes = kEnd64LocatorBytes + kEndBytes + kCommentBytesMax;
// A larger directory cannot come from torch.save: it would list ten million storages.
constexpr std::uint64_t kDirectoryBytesMax = std::uint64_t{1} << 30;

// torch.save's format up to PyTorch 1.5: a pickle that begins with a magic number.
constexpr std::string_view kLegacyMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14);

ZipReader::ReadAt reader_of(ByteSpan archive) {
  return [archive](std::uint64_t offset, MutableByteSpan destination) {
    check_invariant(offset <= archive.size() && destination.size() <= archive.size() - offset,
                    "archives are read within their bounds");
    if (!destination.empty()) std::memcpy(destination.data(), archive.data() + offset, destination.size());
  };
}

// Caches the two ends of an archive, where nearly all of a reader's requests go, unless the archive
// has very many storages. For a store with high latency, two reads replace a dozen; a small archive
// needs one.
ZipReader::ReadAt with_cached_ends(std::uint64_t size_bytes, ZipReader::ReadAt read_at) {
  constexpr std::uint64_t kHeadBytes = 4096;
  struct Ends {
    Bytes head;
    Bytes tail;
  };
  auto ends = std::make_shared<Ends>();
  ends->tail.resize(std::min(size_bytes, kTailBytes));
  if (!ends->tail.empty()) read_at(size_bytes - ends->tail.size(), {ends->tail.data(), ends->tail.size()});
  ends->head.resize(std::min(size_bytes - ends->tail.size(), kHeadBytes));
  if (!ends->head.empty()) read_at(0, {ends->head.data(), ends->head.size()});
  return [size_bytes, ends, read_at = std::move(read_at)](std::uint64_t offset, MutableByteSpan destination) {
    const auto tail_offset = size_bytes - ends->tail.size();
    if (offset >= tail_offset) {
      std::memcpy(destination.data(), ends->tail.data() + (offset - tail_offset), destination.size());
    } else if (offset + destination.size() <= ends->head.size()) {
      std::memcpy(destination.data(), ends->head.data() + offset, destination.size());
    } else {
      read_at(offset, destination);
    }
  };
}

// The values in the zip64 extra field of a directory entry, in their fixed order.
class Zip64Values {
 public:
  explicit Zip64Values(std::string_view extra_fields) {
    while (extra_fields.size() >= kExtraFieldHeaderBytes) {
      const auto id = get_u16(extra_fields.data());
      const std::size_t length = get_u16(extra_fields.data() + 2);
      extra_fields.remove_prefix(kExtraFieldHeaderBytes);
      if (length > extra_fields.size()) {
        is_whole_ = false;
        return;
      }
      if (id == kZip64ExtraField) {
        values_ = extra_fields.substr(0, length);
        is_present_ = true;
      }
      extra_fields.remove_prefix(length);
    }
    is_whole_ = extra_fields.empty();
  }

  bool is_whole() const { return is_whole_; }
  bool is_present() const { return is_present_; }

  // Replaces `value` by the next 64-bit value if it is the zip64 marker. Returns false if there is
  // none.
  bool resolve(std::uint64_t& value) {
    if (value != kSee64) return true;
    if (values_.size() < 8) return false;
    value = get_u64(values_.data());
    values_.remove_prefix(8);
    return true;
  }

 private:
  std::string_view values_;
  bool is_whole_ = true;
  bool is_present_ = false;
};

}  // namespace

ZipReader::ZipReader(std::uint64_t size_bytes, ReadAt read_at, std::string what)
    : size_bytes_(size_bytes), read_at_(with_cached_ends(size_bytes, std::move(read_at))), what_(std::move(what)) {
  read_directory();
}

ZipReader::ZipReader(ByteSpan archive, std::string what)
    : size_bytes_(archive.size()), read_at_(reader_of(archive)), what_(std::move(what)) {
  read_directory();
}

void ZipReader::corrupt(const std::string& why) const { throw Error(ErrorCode::kCorrupt, what_ + ": " + why); }
void ZipReader::unsupported(const std::string& why) const { throw Error(ErrorCode::kUnsupported, what_ + ": " + why); }

// Every read passes through here: offsets and lengths come from the archive and may be damaged.
Bytes ZipReader::read_range(std::uint64_t offset, std::uint64_t length, const char* reading) const {
  if (offset > size_bytes_ || length > size_bytes_ - offset)
    corrupt(std::string(reading) + " would take bytes " + std::to_string(offset) + " to " + std::to_string(offset) + " + " +
            std::to_string(length) + " of an archive of " + std::to_string(size_bytes_));
  Bytes bytes(length, '\0');
  if (length > 0) read_at_(offset, {bytes.data(), bytes.size()});
  return bytes;
}

void ZipReader::read_directory() {
  const auto head = read_range(0, std::min<std::uint64_t>(size_bytes_, kLegacyMagic.size()), "its begin");
  if (head == kLegacyMagic)
    unsupported("torch.save of before PyTorch 1.6 wrote it, which is no zip archive; load and save it again with a newer PyTorch");
  if (is_git_lfs_pointer(head)) corrupt(kGitLfsPointer);
  if (head.size() < 4 || get_u32(head.data()) != kLocalHeaderSignature)
    corrupt("not an archive of torch.save: it does not begin with a zip entry");

  // The end record is the last item, except for a comment whose length it contains.
  const auto tail_bytes = std::min(size_bytes_, kTailBytes);
  const auto tail_offset = size_bytes_ - tail_bytes;
  const auto tail = read_range(tail_offset, tail_bytes, "its end records");
  std::uint64_t end = 0;
  bool is_found = false;
  // Backwards from the end. A signature within the comment is passed over, because the comment's
  // length would not fit.
  for (std::size_t at = tail.size() >= kEndBytes ? tail.size() - kEndBytes + 1 : 0; at > 0 && !is_found; --at) {
    const char* const record = tail.data() + at - 1;
    if (get_u32(record) != kEndSignature) continue;
    if (at - 1 + kEndBytes + get_u16(record + 20) != tail.size()) continue;
    end = at - 1;
    is_found = true;
  }
  if (!is_found) corrupt("no end record: the archive is cut off, or is none");

  const char* const record = tail.data() + end;
  if (get_u16(record + 4) != 0 || get_u16(record + 6) != 0) unsupported("an archive of several disks");
  std::uint64_t count = get_u16(record + 10);
  std::uint64_t directory_bytes = get_u32(record + 12);
  directory_offset_ = get_u32(record + 16);
  auto directory_limit = tail_offset + end;
  if (end >= kEnd64LocatorBytes && get_u32(record - kEnd64LocatorBytes) == kEnd64LocatorSignature) {
    // From here on the zip64 record counts. Fields of the old record must hold the same number or
    // the mark for "see there".
    const auto end64_offset = get_u64(record - kEnd64LocatorBytes + 8);
    const auto end64 = read_range(end64_offset, kEnd64Bytes, "its zip64 end record");
    if (get_u32(end64.data()) != kEnd64Signature) corrupt("no zip64 end record where its locator points to");
    const auto count64 = get_u64(end64.data() + 32);
    const auto bytes64 = get_u64(end64.data() + 40);
    const auto offset64 = get_u64(end64.data() + 48);
    const bool agree = (count == kSee64Count || count == count64) && (directory_bytes == kSee64 || directory_bytes == bytes64) &&
                       (directory_offset_ == kSee64 || directory_offset_ == offset64);
    if (!agree) corrupt("its two end records disagree");
    count = count64;
    directory_bytes = bytes64;
    directory_offset_ = offset64;
    directory_limit = end64_offset;
  }
  // Nothing may lie between the directory and the end records: two readers could otherwise see two
  // directories.
  if (directory_offset_ > directory_limit || directory_bytes != directory_limit - directory_offset_)
    corrupt("its directory, said to be " + std::to_string(directory_bytes) + " bytes at " + std::to_string(directory_offset_) +
            ", does not end where its end records begin");
  if (directory_bytes > kDirectoryBytesMax) unsupported("a directory of " + std::to_string(directory_bytes) + " bytes");
  parse_directory(read_range(directory_offset_, directory_bytes, "its directory"), count);
}

void ZipReader::parse_directory(std::string_view directory, std::uint64_t count) {
  // Before `reserve`: a damaged count must not allocate.
  if (count > directory.size() / kDirectoryHeaderBytes)
    corrupt("its end record counts " + std::to_string(count) + " entries, more than its directory has room for");
  entries_.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto entry_is_whole = [&](bool holds) {
      if (!holds) corrupt("entry " + std::to_string(i) + " of its directory is broken");
    };
    entry_is_whole(directory.size() >= kDirectoryHeaderBytes && get_u32(directory.data()) == kDirectoryHeaderSignature);
    const char* const header = directory.data();
    const auto flags = get_u16(header + 8);
    const auto method = get_u16(header + 10);
    const std::size_t name_length = get_u16(header + 28);
    const std::size_t extra_length = get_u16(header + 30);
    const std::size_t comment_length = get_u16(header + 32);
    Entry entry;
    entry.crc32 = get_u32(header + 16);
    std::uint64_t compressed = get_u32(header + 20);
    entry.size_bytes = get_u32(header + 24);
    entry.header_offset = get_u32(header + 42);
    directory.remove_prefix(kDirectoryHeaderBytes);
    entry_is_whole(directory.size() >= name_length + extra_length + comment_length);
    entry.name = std::string(directory.substr(0, name_length));
    Zip64Values wide(directory.substr(name_length, extra_length));
    entry_is_whole(wide.is_whole());
    directory.remove_prefix(name_length + extra_length + comment_length);
    // In this order: the zip64 field has only the values whose 32-bit fields hold the mark.
    entry_is_whole(wide.resolve(entry.size_bytes) && wide.resolve(compressed) && wide.resolve(entry.header_offset));

    const auto called = "entry \"" + printable(entry.name) + "\"";
    if ((flags & kFlagEncrypted) != 0) unsupported(called + " is encrypted");
    if (method != 0) unsupported(called + " is compressed; torch.save compresses nothing");
    if (compressed != entry.size_bytes) corrupt(called + " is stored, but has two different sizes");
    const bool fits = entry.header_offset <= directory_offset_ &&
                      kLocalHeaderBytes + name_length <= directory_offset_ - entry.header_offset &&
                      entry.size_bytes <= directory_offset_ - entry.header_offset - kLocalHeaderBytes - name_length;
    if (!fits) corrupt(called + " reaches into or beyond its directory");
    if (!by_name_.emplace(entry.name, entries_.size()).second) corrupt(called + " is there twice");
    entries_.push_back(std::move(entry));
  }
  if (!directory.empty()) corrupt("its directory is longer than its " + std::to_string(count) + " entries");
  // The checksum of an empty entry is zero in any case.
  const auto is_silent = [](const Entry& entry) { return *entry.crc32 == 0; };
  const auto is_empty = [](const Entry& entry) { return entry.size_bytes == 0; };
  has_checksums_ =
      !std::all_of(entries_.begin(), entries_.end(), is_silent) || std::all_of(entries_.begin(), entries_.end(), is_empty);
  if (!has_checksums_)
    for (Entry& entry : entries_) entry.crc32.reset();
}

const ZipReader::Entry* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::uint64_t ZipReader::data_offset(const Entry& entry) const {
  const auto called = "entry \"" + printable(entry.name) + "\"";
  const auto header = read_range(entry.header_offset, kLocalHeaderBytes, "a local header");
  if (get_u32(header.data()) != kLocalHeaderSignature) corrupt(called + " has no local header where the directory points to");
  const auto flags = get_u16(header.data() + 6);
  const std::size_t name_length = get_u16(header.data() + 26);
  const std::size_t extra_length = get_u16(header.data() + 28);
  const auto rest = read_range(entry.header_offset + kLocalHeaderBytes, name_length + extra_length, "a local header");
  // The local header repeats the directory. Where they differ, other readers would see another
  // archive.
  if (std::string_view(rest).substr(0, name_length) != entry.name) corrupt(called + " has another name in its local header");
  if (get_u16(header.data() + 8) != 0 || (flags & kFlagEncrypted) != 0) corrupt(called + " is stored, but not in its local header");

  const auto begin = entry.header_offset + kLocalHeaderBytes + name_length + extra_length;
  if (begin > directory_offset_ || entry.size_bytes > directory_offset_ - begin) corrupt(called + " reaches into its directory");
  Zip64Values wide(std::string_view(rest).substr(name_length));
  if ((flags & kFlagDescriptor) != 0) {
    check_descriptor(entry, begin + entry.size_bytes, wide.is_present());
  } else if (entry.size_bytes > 0) {
    std::uint64_t size = get_u32(header.data() + 22);
    if (get_u32(header.data() + 14) != entry.crc32.value_or(0) || !wide.resolve(size) || size != entry.size_bytes)
      corrupt(called + " has another size or CRC-32 in its local header");
  }
  return begin;
}

void ZipReader::check_descriptor(const Entry& entry, std::uint64_t end_of_data, bool is_64) const {
  // miniz writes 64-bit descriptors for entries that start, or extend, beyond 4 GiB. Other programs
  // do so if the local header has a zip64 field.
  if (entry.size_bytes == 0) return;
  const auto available = directory_offset_ - end_of_data;
  const auto bytes = read_range(end_of_data, std::min<std::uint64_t>(available, 24), "a data descriptor");
  const bool has_64 =
      bytes.size() >= 24 && get_u64(bytes.data() + 8) == entry.size_bytes && get_u64(bytes.data() + 16) == entry.size_bytes;
  const bool has_32 = bytes.size() >= 16 && entry.size_bytes < kSee64 && get_u32(bytes.data() + 8) == entry.size_bytes &&
                      get_u32(bytes.data() + 12) == entry.size_bytes;
  const bool is_good = bytes.size() >= 16 && get_u32(bytes.data()) == kDescriptorSignature &&
                       get_u32(bytes.data() + 4) == entry.crc32.value_or(0) && (is_64 ? has_64 : has_32 || has_64);
  if (!is_good)
    corrupt("entry \"" + printable(entry.name) + "\" is not followed by a data descriptor that agrees with the directory");
}

Bytes ZipReader::read(const Entry& entry) const {
  const auto begin = data_offset(entry);
  auto bytes = read_range(begin, entry.size_bytes, "an entry");
  if (entry.crc32 && crc32(0, bytes) != *entry.crc32)
    corrupt("entry \"" + printable(entry.name) + "\", " + std::to_string(entry.size_bytes) + " bytes at " + std::to_string(begin) +
            ", has another CRC-32 than when it was written: the bytes are damaged");
  return bytes;
}

}  // namespace cairn
