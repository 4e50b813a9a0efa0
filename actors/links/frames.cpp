#include <cairn/actors/links/frames.hpp>

#include <algorithm>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/messages/link.pb.h>

namespace cairn {

std::string encode_frame(const v1::LinkFrame& frame) {
  const std::size_t size = frame.ByteSizeLong();
  check_invariant(size <= UINT32_MAX, "a frame's length fits in 32 bits");
  std::string bytes;
  bytes.reserve(kFramePrefixBytes + size);
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(size >> shift & 0xff));
  check_invariant(frame.AppendToString(&bytes), "a frame can be encoded");
  return bytes;
}

FrameReader::Status FrameReader::next(ByteSpan& frame) {
  const auto available = buffer_.size() - read_;
  if (available >= kFramePrefixBytes) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < kFramePrefixBytes; ++i) size = size << 8 | static_cast<unsigned char>(buffer_[read_ + i]);
    if (size > frame_bytes_max_) return Status::kTooLong;
    if (available - kFramePrefixBytes >= size) {
      frame = ByteSpan(buffer_.data() + read_ + kFramePrefixBytes, size);
      read_ += kFramePrefixBytes + size;
      return Status::kFrame;
    }
  }
  // Only part of a frame is left, so move it to the front. Release a large buffer when it is empty.
  buffer_.erase(0, std::exchange(read_, 0));
  if (buffer_.empty() && buffer_.capacity() > kHelloBytesMax) std::string().swap(buffer_);
  return Status::kIncomplete;
}

void MessageSplitter::push(Part bytes, Part shared) {
  queue_.push_back({std::move(bytes), std::move(shared)});
  bytes_ += queue_.back().size();
}

std::string MessageSplitter::next_frame(std::size_t frame_bytes_max) {
  check_invariant(!queue_.empty(), "there is a message to send");
  check_invariant(frame_bytes_max > kSectionOverheadBytes, "a frame has room for a section");
  const auto& message = queue_.front();
  const auto length = std::min(message.size() - offset_, frame_bytes_max - kSectionOverheadBytes);
  v1::LinkFrame frame;
  auto& section = *frame.mutable_section();
  section.set_message(sent_ + 1);
  section.set_total(message.size());
  section.set_offset(offset_);
  auto& bytes = *section.mutable_bytes();
  bytes.reserve(length);
  if (offset_ < message.bytes->size()) bytes.append(*message.bytes, offset_, length);
  if (bytes.size() < length) bytes.append(*message.shared, offset_ + bytes.size() - message.bytes->size(), length - bytes.size());
  offset_ += length;
  bytes_ -= length;
  if (offset_ == message.size()) {
    queue_.pop_front();
    offset_ = 0;
    ++sent_;
  }
  return encode_frame(frame);
}

bool MessageAssembler::add(v1::LinkSection& section, std::string& message) {
  const auto corrupt = [](const std::string& what) {
    throw Error(ErrorCode::kCorrupt, "assembling a message from its sections: " + what);
  };
  if (section.total() > message_bytes_max_) {
    corrupt("it announces " + std::to_string(section.total()) + " bytes, more than message_bytes_max " +
            std::to_string(message_bytes_max_));
  }
  if (section.message() != message_ || section.offset() != bytes_.size()) {
    corrupt("got message " + std::to_string(section.message()) + " at " + std::to_string(section.offset()) + ", expected message " +
            std::to_string(message_) + " at " + std::to_string(bytes_.size()));
  }
  if (section.offset() == 0) total_ = section.total();
  if (section.total() != total_) corrupt("its length changes on the way");
  if (section.bytes().size() > section.total() - section.offset()) corrupt("a section reaches beyond the message's end");
  if (section.bytes().empty() && section.total() != 0) corrupt("an empty section");
  if (bytes_.empty()) {
    bytes_ = std::move(*section.mutable_bytes());
  } else {
    bytes_ += section.bytes();
  }
  if (bytes_.size() != section.total()) return false;
  message = std::exchange(bytes_, {});
  ++message_;
  return true;
}

}  // namespace cairn
