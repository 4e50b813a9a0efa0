#include <cairn/storage/format/commit_head.hpp>

#include <algorithm>

#include <cairn/messages/metadata.pb.h>
#include <cairn/base/error.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/names.hpp>

namespace cairn {
namespace {

// Windows of reading: the first fits the small fields around a large one, the last a record of many
// small fields.
constexpr std::uint64_t kFirstWindowBytes = std::uint64_t{4} * 1024;
constexpr std::uint64_t kLastWindowBytes = std::uint64_t{1024} * 1024;
// Limit on the length of a save id and of the commit information. User metadata has no other limit.
constexpr std::uint64_t kFieldBytesMax = std::uint64_t{64} << 20;

// Walks over a Protobuf message in an object and reads only the parts that it needs. The read
// window grows while reads are adjacent, so that many small fields cost few reads. It starts small
// again after a skipped field.
class FieldWalk {
 public:
  // `window`: the bytes at `window_begin`, which were read before; all bytes, if `store` is null.
  FieldWalk(Store* store, const ObjectName& name, std::uint64_t begin, std::uint64_t end, std::uint64_t window_begin,
            std::string window)
      : store_(store),
        name_(name),
        position_(begin),
        end_(end),
        window_(std::move(window)),
        window_begin_(window_begin) {}

  bool at_end() const { return position_ == end_; }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(next());
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }

  std::string bytes(std::uint64_t length) {
    // Before the allocation: a damaged length must not take memory.
    if (length > kFieldBytesMax || length > end_ - position_) damaged();
    std::string content(length, '\0');
    if (position_ >= window_begin_ && position_ + length <= window_begin_ + window_.size())
      window_.copy(content.data(), length, position_ - window_begin_);
    else
      read(position_, {content.data(), content.size()});
    position_ += length;
    return content;
  }

  void skip(std::uint64_t length) {
    if (length > end_ - position_) damaged();
    position_ += length;
  }

  [[noreturn]] void damaged() const {
    throw Error(ErrorCode::kCorrupt, "cannot find the save id and the sequence in " + name_ +
                                         (store_ != nullptr ? " of " + store_->url() : "") + ": near byte " +
                                         std::to_string(position_) +
                                         " it is not what Cairn writes; it is damaged or was just replaced");
  }

 private:
  char next() {
    if (position_ >= end_) damaged();
    const std::uint64_t window_end = window_begin_ + window_.size();
    if (position_ < window_begin_ || position_ >= window_end) {
      const bool adjacent = position_ >= window_end && position_ - window_end < window_bytes_;
      window_bytes_ = adjacent ? std::min(window_bytes_ * 2, kLastWindowBytes) : kFirstWindowBytes;
      window_.resize(std::min(window_bytes_, end_ - position_));
      window_begin_ = position_;
      read(position_, {window_.data(), window_.size()});
    }
    return window_[position_++ - window_begin_];
  }

  void read(std::uint64_t at, MutableByteSpan bytes) {
    if (store_ == nullptr) damaged();
    store_->read(name_, {{at, bytes}});
  }

  Store* const store_;
  const ObjectName& name_;
  std::uint64_t position_;
  const std::uint64_t end_;
  std::string window_;
  std::uint64_t window_begin_;
  std::uint64_t window_bytes_ = 0;  // of the last read by this walk
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

// `end`: the bytes of the record from `end_begin` on. `size`: without a fence mark.
CommitHead walk_section(Store* store, const ObjectName& name, const CommitFooter& footer, std::uint64_t size,
                        std::uint64_t end_begin, std::string end) {
  const std::uint64_t section_end = size - kCommitFooterBytes;
  FieldWalk walk(store, name, std::min(footer.section_offset, section_end), section_end, end_begin, std::move(end));
  if (footer.section_offset > section_end || footer.section_length != section_end - footer.section_offset) walk.damaged();

  CommitHead head;
  bool has_commit = false;
  while (!walk.at_end()) {
    enum Wire : std::uint64_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };
    const std::uint64_t tag = walk.varint();
    const std::uint64_t field = tag >> 3;
    switch (tag & 7) {
      case kVarint:
        walk.varint();
        break;
      case kFixed64:
        walk.skip(8);
        break;
      case kFixed32:
        walk.skip(4);
        break;
      case kLengthDelimited: {
        const std::uint64_t length = walk.varint();
        if (field == v1::Metadata::kSaveIdFieldNumber) {
          head.save_id = walk.bytes(length);
        } else if (field == v1::Metadata::kCommitFieldNumber) {
          v1::CommitInfo commit;
          if (!commit.ParseFromString(walk.bytes(length))) walk.damaged();
          head.sequence = commit.sequence();
          if (commit.has_step()) head.step = commit.step();
          for (const auto& entry : commit.user_metadata()) head.user_metadata.emplace(entry.key(), entry.value());
          has_commit = true;
        } else {
          walk.skip(length);
        }
        break;
      }
      default:
        walk.damaged();
    }
  }
  // The checksum was not verified, because that needs the whole record. These checks notice most
  // records that were replaced during the walk.
  if (!has_commit || head.save_id.empty()) walk.damaged();
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
  return walk_section(&store, name, *footer, size, end_begin, std::move(end));
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
  const std::size_t begin = std::min<std::uint64_t>(footer->section_offset, record.size());
  return walk_section(nullptr, kCommitRecordName, *footer, record.size(), begin, std::string(record.view().substr(begin)));
}

}  // namespace cairn
