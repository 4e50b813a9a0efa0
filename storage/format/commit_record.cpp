#include <cairn/storage/format/commit_record.hpp>

#include <algorithm>
#include <future>
#include <string_view>
#include <vector>

#include <cairn/base/digest.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/git_lfs.hpp>
#include <cairn/base/utf8.hpp>
#include <cairn/formats/torch_metadata.hpp>
#include <cairn/formats/zip_format.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

using zip::put_u32;
using zip::put_u64;

bool has_mark(std::string_view save_id) { return save_id.substr(0, std::string_view(kSaveIdMark).size()) == kSaveIdMark; }

// PyTorch's save id begins with the mark.
std::string pickled_id(const Metadata& metadata) {
  return has_mark(metadata.save_id) ? metadata.save_id : kSaveIdMark + metadata.save_id;
}

void check_size(std::uint64_t bytes, const std::string& what) {
  if (bytes > kCommitRecordBytesMax)
    throw Error(ErrorCode::kUnsupported, what + ": " + std::to_string(bytes) + " bytes, more than the " +
                                             std::to_string(kCommitRecordBytesMax) + " that a commit record may have");
}

bool is_described(const FileInfo& file) { return file.length && file.crc32 && file.trailer_length; }

// Without length, checksum and trailer a data file would be read unchecked.
void require_described(const std::vector<FileInfo>& files) {
  for (const FileInfo& file : files)
    if (!is_described(file))
      throw Error(ErrorCode::kCorrupt, "Cairn's section does not say length, checksum and trailer length of " +
                                           printable_utf8(file.name) + ", as it does of every file that Cairn wrote");
}

Metadata decode_section(ByteSpan section, const CommitFooter& footer, const std::string& what, const NeededNames* needed) try {
  auto metadata = decode_metadata(section, footer.version, needed);
  if (!metadata.commit) throw Error(ErrorCode::kCorrupt, "Cairn's section says nothing about the commit");
  const std::size_t at = footer.head_offset - footer.section_offset;
  const Metadata head = decode_metadata(section.subspan(at, section.size() - at), footer.version);
  if (!head.commit || head.save_id.empty() || head.save_id != metadata.save_id)
    throw Error(ErrorCode::kCorrupt, "its head is that of another save");
  require_described(metadata.files);
  return metadata;
} catch (const Error& error) {
  throw Error(error.code(), what + ": " + error.what());
}

Metadata decode_own(ByteSpan record, const std::string& what, const NeededNames* needed) {
  // The checksum comes before the version: a damaged version must not be reported as a newer Cairn.
  const auto footer = *parse_commit_footer(record);
  const auto covered = record.size() - kCommitFooterBytes + kCommitCrcAt;
  if (crc32(0, record.subspan(0, covered)) != footer.crc32)
    throw Error(ErrorCode::kCorrupt, what + ": the CRC-32 in its footer does not match its bytes: it is damaged");
  const auto version = footer.version;
  if (version > kFormatVersion)
    throw Error(ErrorCode::kUnsupported, what + ": written in format version " + std::to_string(version) +
                                             " by a newer Cairn; this one reads up to version " + std::to_string(kFormatVersion) +
                                             ": use a newer one to read it");
  const auto offset = footer.section_offset;
  const auto section_end = record.size() - kCommitFooterBytes;
  if (version == 0 || offset > footer.head_offset || footer.head_offset > section_end)
    throw Error(ErrorCode::kCorrupt, what + ": its footer says that a section begins at " + std::to_string(offset) +
                                         " and its head at " + std::to_string(footer.head_offset) + " of " +
                                         std::to_string(record.size()));
  return decode_section(record.subspan(offset, section_end - offset), footer, what, needed);
}

struct RecordEnd {
  ByteSpan bytes;  // up to the end of the footer
  std::uint64_t record_bytes = 0;
  CommitFooter footer;
};

// Returns nothing unless the end is that of a record of this version.
std::optional<RecordEnd> record_end(const ObjectEnd& object) {
  RecordEnd end{object.content, object.object_bytes, {}};
  if (ends_in_fence_mark(end.bytes)) {
    end.bytes = end.bytes.subspan(0, end.bytes.size() - kFenceMarkBytes);
    end.record_bytes -= kFenceMarkBytes;
  }
  const auto footer = parse_commit_footer(end.bytes);
  if (!footer || footer->version != kFormatVersion || footer->section_offset > footer->head_offset ||
      footer->head_offset > end.record_bytes - kCommitFooterBytes)
    return std::nullopt;
  end.footer = *footer;
  return end;
}

}  // namespace

void check_commit_record_fits(std::uint64_t items) {
  const std::uint64_t bytes_min = items * kCommitRecordBytesPerChunkMin;
  if (bytes_min <= kCommitRecordBytesMax) return;
  throw Error(ErrorCode::kUnsupported, "cannot save " + std::to_string(items) +
                                           " chunks and bytes objects in one checkpoint: the commit record would have at least " +
                                           std::to_string(bytes_min) + " bytes, and the limit is " +
                                           std::to_string(kCommitRecordBytesMax) +
                                           "; shard over fewer ranks, or save several checkpoints");
}

EncodedPlan::EncodedPlan(const Metadata& metadata) {
  // Both take a microsecond for each of a million items: this thread encodes the entries meanwhile.
  auto pickled = std::async([&] { return TorchPickle(metadata, pickled_id(metadata)); });
  entries = encode_entries(metadata);
  pickle = pickled.get();
}

Bytes encode_commit_record(const Metadata& metadata) { return encode_commit_record(EncodedPlan(metadata), metadata); }

// Checked before encoding and, by other code, after decoding: a record that cannot be read back
// must never be published.
Bytes encode_commit_record(const EncodedPlan& plan, const Metadata& metadata) {
  if (!metadata.commit || metadata.save_id.empty())
    throw Error(ErrorCode::kInvalidArgument, "a commit record needs a save id and what Cairn says about the commit");
  if (!std::all_of(metadata.files.begin(), metadata.files.end(), is_described))
    throw Error(ErrorCode::kInvalidArgument, "a commit record needs the length, checksum and trailer length of each file");
  // Cairn's section follows the pickle. PyTorch's unpickler stops at the end of the pickle and
  // ignores the rest.
  const auto section = encode_section(plan.entries, metadata);
  const std::size_t end_bytes = encode_checksum({}, {}).size() + kCommitFooterBytes;
  Bytes record;
  record.reserve(plan.pickle.size() + section.size() + end_bytes + 64 * metadata.files.size());  // names may be longer
  plan.pickle.append_to(record, metadata, pickled_id(metadata));
  const auto offset = record.size();
  check_size(offset + section.size() + end_bytes, "encode the commit record");
  Bytes footer;
  put_u64(footer, offset);
  put_u64(footer, offset + section.size() - encode_head(metadata).size());
  put_u32(footer, kFormatVersion);
  footer += kCommitMagic;
  record += section;
  record += encode_checksum(section, footer);
  record += footer;
  // Covers everything before it, also the pickle and the footer's own fields.
  put_u32(record, crc32(0, record));
  return record;
}

Metadata decode_commit_record(ByteSpan record, const std::string& what, const NeededNames* needed) {
  check_size(record.size(), what);
  if (is_git_lfs_pointer(record)) throw Error(ErrorCode::kCorrupt, what + ": " + kGitLfsPointer);
  if (ends_in_fence_mark(record)) record = record.subspan(0, record.size() - kFenceMarkBytes);
  if (parse_commit_footer(record)) return decode_own(record, what, needed);

  auto torch = unpickle_torch_metadata(record, what);
  // The mark in the pickle proves that there was a footer. Without this check, a truncated record
  // would be read as PyTorch's, with nothing to compare its files with.
  if (has_mark(torch.metadata.save_id))
    throw Error(ErrorCode::kCorrupt, what + ": Cairn wrote it (save id \"" + torch.metadata.save_id +
                                         "\"), but the footer at its end is missing or damaged: it was cut off or overwritten");
  if (torch.consumed_bytes != record.size())
    throw Error(ErrorCode::kCorrupt, what + ": " + std::to_string(record.size() - torch.consumed_bytes) +
                                         " bytes follow the pickle that are neither PyTorch's nor Cairn's: it is damaged");
  return std::move(torch.metadata);
}

std::uint64_t commit_section_bytes(const ObjectEnd& end) {
  const auto record = record_end(end);
  return record ? end.object_bytes - record->footer.section_offset : 0;
}

std::optional<Metadata> decode_commit_section(const ObjectEnd& end, const std::string& what, const NeededNames& needed) {
  const auto record = record_end(end);
  if (!record) return std::nullopt;
  const std::size_t footer_begin = record->bytes.size() - kCommitFooterBytes, checksum_bytes = encode_checksum({}, {}).size();
  const std::uint64_t section_bytes = record->record_bytes - kCommitFooterBytes - record->footer.section_offset;
  if (section_bytes > footer_begin || section_bytes < checksum_bytes) return std::nullopt;
  const ByteSpan section = record->bytes.subspan(footer_begin - section_bytes, section_bytes);
  const ByteSpan summed = section.subspan(0, section.size() - checksum_bytes);
  if (!ends_with(section.view(), encode_checksum(summed, record->bytes.subspan(footer_begin, kCommitCrcAt)))) return std::nullopt;
  try {
    return decode_section(section, record->footer, what, &needed);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace cairn
