#include <cairn/storage/format/commit_head.hpp>

#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/metadata_codec.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

// Returns whether a record without a footer is not PyTorch's. PyTorch's record ends with a pickle
// whose last opcodes build an object from its fields, and names no save of Cairn's.
bool is_cut(std::string_view end) {
  constexpr std::string_view kMark = "cairn-", kIdCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-";
  if (!ends_with(end, "ub.")) return true;
  for (std::size_t at = end.find(kMark); at != std::string_view::npos; at = end.find(kMark, at + 1))
    if (is_save_id(end.substr(at, end.find_first_not_of(kIdCharacters, at) - at))) return true;
  return false;
}

Error no_head(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "cannot find the save id and the sequence in " + what +
                                        ": it is not what Cairn writes; it is damaged or was just replaced");
}

// `section` ends with the section of a record that `what` names in errors, and has all of its head.
CommitHead head_of(ByteSpan section, std::uint32_t version, const std::string& what) try {
  Metadata head = decode_metadata(section, version);
  // A caller may not have verified the checksum, which needs the whole record. This and the decoder
  // notice most records that were replaced between two reads.
  if (!head.commit || head.save_id.empty()) throw no_head(what);
  return {*std::move(head.commit), std::move(head.save_id)};
} catch (const Error&) {
  throw no_head(what);
}

// With `must_be_sound`, also throws kCorrupt if all of the record was read and its checksum does
// not match.
std::optional<CommitHead> head_in(Store& store, const ObjectName& name, bool must_be_sound, const PlaceContents* seen = nullptr) {
  auto found = seen != nullptr && seen->record.object_bytes > 0 ? seen->record : store.read_end(name, kRecordEndBytes);
  if (!found) return std::nullopt;
  std::uint64_t size = found->object_bytes;
  std::string end = std::move(found->content);
  const std::uint64_t end_begin = size - end.size();
  if (ends_in_fence_mark(end)) {
    size -= kFenceMarkBytes;
    end.resize(end.size() - kFenceMarkBytes);
  }
  const auto footer = parse_commit_footer(end);
  if (!footer && (must_be_sound || is_cut(end)))
    throw Error(ErrorCode::kCorrupt, "cannot find the save id and the sequence in " + name + " of " + store.url() +
                                         ": it ends neither as Cairn writes it nor as PyTorch does; it was cut off or overwritten");
  if (!footer) return std::nullopt;
  if (must_be_sound && end_begin == 0 && footer->crc32 != crc32(0, ByteSpan(end).subspan(0, end.size() - 4)))
    throw Error(ErrorCode::kCorrupt, child_url(store.url(), name) + " is damaged: its checksum does not match");
  const std::string what = name + " of " + store.url();
  const std::uint64_t section_end = size - kCommitFooterBytes;
  if (footer->head_offset > section_end || section_end - footer->head_offset > kCommitRecordBytesMax) throw no_head(what);
  Bytes head(static_cast<std::size_t>(section_end - footer->head_offset), '\0');
  if (footer->head_offset >= end_begin)
    end.copy(head.data(), head.size(), footer->head_offset - end_begin);
  else
    store.read(name, {{footer->head_offset, {head.data(), head.size()}}});
  return head_of(head, footer->version, what);
}

}  // namespace

std::optional<CommitHead> read_commit_head(Store& store, const ObjectName& name, const PlaceContents* seen) try {
  const std::shared_ptr<Store> other = store.fallback();
  // The record may have been replaced during the first read. Only real damage appears in both
  // reads.
  for (int tries = 0; other && tries < 2; ++tries) {
    try {
      return head_in(store, name, true, tries == 0 ? seen : nullptr);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
    }
  }
  return head_in(other && other->exists(name) ? *other : store, name, false, other ? nullptr : seen);
} catch (const Error& error) {
  if (error.code() != ErrorCode::kNotFound) throw;
  return std::nullopt;  // removed during the read
}

std::optional<CommitHead> commit_head_in(ByteSpan record) {
  const auto footer = parse_commit_footer(record);
  if (!footer) return std::nullopt;
  const std::uint64_t section_end = record.size() - kCommitFooterBytes;
  if (footer->head_offset > section_end) throw no_head(kCommitRecordName);
  return head_of(record.subspan(footer->head_offset, section_end - footer->head_offset), footer->version, kCommitRecordName);
}

}  // namespace cairn
