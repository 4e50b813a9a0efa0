#include <cairn/storage/format/commit_head.hpp>

#include <algorithm>
#include <functional>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <cairn/messages/metadata.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

// Limit on the length of a save id and of the commit information. User metadata has no other limit.
constexpr std::uint32_t kFieldBytesMax = 64u << 20;

// A section in an object. Reads only what is not skipped.
class SectionStream final : public google::protobuf::io::CopyingInputStream {
 public:
  // `window`: the bytes from `window_begin` to the end of the section, which were read before.
  SectionStream(Store& store, const ObjectName& name, std::uint64_t begin, std::uint64_t window_begin, std::string_view window)
      : store_(store), name_(name), position_(begin), window_begin_(window_begin), window_(window) {}

  int Read(void* buffer, int size) override {
    const std::uint64_t at = position_;
    const int count = Skip(size);
    char* const to = static_cast<char*>(buffer);
    if (at >= window_begin_)
      window_.copy(to, static_cast<std::size_t>(count), at - window_begin_);
    else
      store_.read(name_, {{at, {to, static_cast<std::size_t>(count)}}});
    return count;
  }
  int Skip(int count) override {
    const std::uint64_t left = window_begin_ + window_.size() - position_;
    const int skipped = static_cast<int>(std::min<std::uint64_t>(left, static_cast<std::uint64_t>(count)));
    position_ += static_cast<std::uint64_t>(skipped);
    return skipped;
  }

 private:
  Store& store_;
  const ObjectName& name_;
  std::uint64_t position_;
  const std::uint64_t window_begin_;
  const std::string_view window_;
};

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

// Returns whether the section lies where the footer says. `size`: of the record without a fence
// mark.
bool has_section(const CommitFooter& footer, std::uint64_t size) {
  const std::uint64_t end = size - kCommitFooterBytes;
  return footer.section_offset <= end && footer.section_length == end - footer.section_offset;
}

// Reads bytes of a section that the stream skips.
using ReadAt = std::function<void(int offset, MutableByteSpan bytes)>;

// `what` names the record in errors. With `read_at`, a long field is one read instead of one for
// each buffer of the stream.
CommitHead head_in_section(google::protobuf::io::ZeroCopyInputStream& section, const std::string& what,
                           const ReadAt& read_at = nullptr) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream input(&section);
  CommitHead head;
  bool has_commit = false;
  while (const std::uint32_t tag = input.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const bool is_save_id = field == v1::Metadata::kSaveIdFieldNumber, is_commit = field == v1::Metadata::kCommitFieldNumber;
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED || (!is_save_id && !is_commit)) {
      if (!WireFormatLite::SkipField(&input, tag)) throw no_head(what);
      continue;
    }
    std::uint32_t length = 0;
    std::string content;
    // The limit comes first: a damaged length must not take memory.
    if (!input.ReadVarint32(&length) || length > kFieldBytesMax) throw no_head(what);
    const bool is_long = read_at && length > kRecordEndBytes;
    const int offset = input.CurrentPosition(), bytes = static_cast<int>(length);
    if (is_long ? !input.Skip(bytes) : !input.ReadString(&content, bytes)) throw no_head(what);
    if (is_long) {
      content.resize(length);
      read_at(offset, {content.data(), content.size()});
    }
    if (is_save_id) {
      head.save_id = std::move(content);
      continue;
    }
    v1::CommitInfo commit;
    if (!commit.ParseFromString(content)) throw no_head(what);
    head.sequence = commit.sequence();
    if (commit.has_step()) head.step = commit.step();
    for (const auto& entry : commit.user_metadata()) head.user_metadata.emplace(entry.key(), entry.value());
    head.shares_with.assign(commit.shares_with().begin(), commit.shares_with().end());
    has_commit = true;
  }
  // The checksum was not verified, because that needs the whole record. These checks notice most
  // records that were replaced during the walk.
  if (!input.ConsumedEntireMessage() || !has_commit || head.save_id.empty()) throw no_head(what);
  return head;
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
  if (!has_section(*footer, size)) throw no_head(what);
  end.resize(end.size() - kCommitFooterBytes);
  SectionStream stream(store, name, footer->section_offset, end_begin, end);
  google::protobuf::io::CopyingInputStreamAdaptor section(&stream, kRecordEndBytes);
  return head_in_section(section, what, [&, begin = footer->section_offset](int offset, MutableByteSpan bytes) {
    store.read(name, {{begin + static_cast<std::uint64_t>(offset), bytes}});
  });
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
  if (!has_section(*footer, record.size())) throw no_head(kCommitRecordName);
  google::protobuf::io::ArrayInputStream section(record.data() + footer->section_offset, static_cast<int>(footer->section_length));
  return head_in_section(section, kCommitRecordName);
}

}  // namespace cairn
