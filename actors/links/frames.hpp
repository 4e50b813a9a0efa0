// The bytes of one direction of one link: a stream of frames, and messages cut into sections. Pure: no sockets, no actors.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include <cairn/base/bytes.hpp>

namespace cairn::v1 {
class LinkFrame;
class LinkSection;
}  // namespace cairn::v1

namespace cairn {

// The length in front of a frame.
inline constexpr std::size_t kFramePrefixBytes = 4;
// The longest frame before the other side has said who it is.
inline constexpr std::size_t kHelloBytesMax = 64u << 10;
// What a section's frame holds besides the section's bytes, at most.
inline constexpr std::size_t kSectionOverheadBytes = 64;

// The frame with its length in front.
std::string encode_frame(const v1::LinkFrame& frame);

// Cuts a stream of bytes into frames. Never holds more than one frame and what was appended at once.
class FrameReader {
 public:
  enum class Status { kFrame, kIncomplete, kTooLong };

  explicit FrameReader(std::size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}
  void set_frame_bytes_max(std::size_t bytes) { frame_bytes_max_ = bytes; }

  // New bytes are appended here.
  std::string& buffer() { return buffer_; }
  // kFrame: `frame` is the next one, without its length, valid until the next call of this object. A length beyond the limit is
  // kTooLong at once, before anything is kept for it; the stream is of no use then.
  Status next(ByteSpan& frame);

 private:
  std::size_t frame_bytes_max_;
  std::string buffer_;
  std::size_t read_ = 0;  // what of the buffer was handed out already
};

// Messages that wait to be sent, cut into sections one frame at a time, so that no second copy of a large message is ever made.
class MessageSplitter {
 public:
  using Part = std::shared_ptr<const std::string>;

  // One message: `bytes`, then `shared`, which may be null.
  void push(Part bytes, Part shared = nullptr);
  bool empty() const { return queue_.empty(); }
  // Of all waiting messages, less what was cut off already.
  std::size_t bytes() const { return bytes_; }
  // The next section as a frame of at most `frame_bytes_max` bytes. Not when empty.
  std::string next_frame(std::size_t frame_bytes_max);

 private:
  struct Message {
    Part bytes;
    Part shared;
    std::size_t size() const { return bytes->size() + (shared ? shared->size() : 0); }
  };

  std::deque<Message> queue_;
  std::size_t offset_ = 0;  // into the first one
  std::size_t bytes_ = 0;
  std::uint64_t sent_ = 0;  // messages, for their numbers
};

// Sections back to messages.
class MessageAssembler {
 public:
  explicit MessageAssembler(std::size_t message_bytes_max) : message_bytes_max_(message_bytes_max) {}

  // Takes the bytes out of `section`. True: `message` is complete. Throws kCorrupt if it does not continue what came before, or
  // belongs to a message that is too long. Memory grows with what has arrived, not with what was announced.
  bool add(v1::LinkSection& section, std::string& message);

 private:
  std::size_t message_bytes_max_;
  std::uint64_t message_ = 1;  // the number of the one being assembled
  std::uint64_t total_ = 0;    // its length, as its first section announced it
  std::string bytes_;
};

}  // namespace cairn
