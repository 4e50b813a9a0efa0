// One direction of a link as bytes: messages are cut into sections, and each section is sent in one
// frame of the stream. This code uses no sockets and no actors.
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

// The size of the length field before each frame.
inline constexpr std::size_t kFramePrefixBytes = 4;
// The maximum frame length until the other side has identified itself.
inline constexpr std::size_t kHelloBytesMax = 64u << 10;
// The maximum difference between the size of a frame and the number of bytes of its section.
inline constexpr std::size_t kSectionOverheadBytes = 64;

// Returns the frame, preceded by its length.
std::string encode_frame(const v1::LinkFrame& frame);

// Cuts a byte stream into frames. Holds at most one frame and the bytes appended last.
class FrameReader {
 public:
  enum class Status { kFrame, kIncomplete, kTooLong };

  explicit FrameReader(std::size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}
  void set_frame_bytes_max(std::size_t bytes) { frame_bytes_max_ = bytes; }

  // Returns the buffer to which new bytes must be appended.
  std::string& buffer() { return buffer_; }
  // Sets `frame` to the next frame, without its length, and returns kFrame. `frame` is valid until
  // the next call on this object. Returns kTooLong as soon as a length exceeds the limit, before
  // memory is allocated for the frame; the stream is then unusable.
  Status next(ByteSpan& frame);

 private:
  std::size_t frame_bytes_max_;
  std::string buffer_;
  std::size_t read_ = 0;  // bytes of `buffer_` already returned
};

// Queues messages to send and cuts them into sections, one frame at a time, so that a large message
// is never copied as a whole.
class MessageSplitter {
 public:
  using Part = std::shared_ptr<const std::string>;

  // Adds one message: `bytes`, then `shared`, which may be null.
  void push(Part bytes, Part shared = nullptr);
  bool empty() const { return queue_.empty(); }
  // Returns the size of all queued messages, without the parts already cut off.
  std::size_t bytes() const { return bytes_; }
  // Cuts off the next section. Returns it as a frame of at most `frame_bytes_max` bytes. The queue
  // must not be empty.
  std::string next_frame(std::size_t frame_bytes_max);

 private:
  struct Message {
    Part bytes;
    Part shared;
    std::size_t size() const { return bytes->size() + (shared ? shared->size() : 0); }
  };

  std::deque<Message> queue_;
  std::size_t offset_ = 0;  // into the first message
  std::size_t bytes_ = 0;
  std::uint64_t sent_ = 0;  // number of messages sent so far; the next one gets the next number
};

// Reassembles messages from sections.
class MessageAssembler {
 public:
  explicit MessageAssembler(std::size_t message_bytes_max) : message_bytes_max_(message_bytes_max) {}

  // Adds the next section, and moves its bytes out of `section`. If it completes a message, sets
  // `message` and returns true. Throws kCorrupt if the section does not continue the previous one,
  // or if the message is too long. Memory grows with the bytes received, not with the announced
  // length.
  bool add(v1::LinkSection& section, std::string& message);

 private:
  std::size_t message_bytes_max_;
  std::uint64_t message_ = 1;  // the number of the message being assembled
  std::uint64_t total_ = 0;    // its length, as announced by its first section
  std::string bytes_;
};

}  // namespace cairn
