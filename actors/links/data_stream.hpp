// A stream of the data plane (transport.hpp) over one socket. Internal.
//
// Both ways have the same frames (docs/protocol.md). With shared memory, only the bytes of blocks
// move through it, one block per slot, and the receiver returns each slot. Without it, the blocks
// are in the socket, whose bounded buffers are the flow control.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

#include <cairn/actors/links/byte_socket.hpp>
#include <cairn/actors/links/shared_window.hpp>
#include <cairn/actors/links/transport.hpp>
#include <cairn/base/bytes.hpp>
#include <cairn/base/clock.hpp>
#include <cairn/base/error.hpp>
#include <cairn/base/mutex.hpp>

namespace cairn {

enum class FrameKind : char {
  kHeartbeat = '.',  // one byte, in both directions, between frames
  kTaken = 'T',      // one byte, from the receiver: a slot is free
  kHello = 'H',      // from the opener: number = stream; text = protocol, both ranks, world
  kAccepted = 'A',   // the answer
  kBlock = 'B',      // number = offset in the stream
  kEnd = 'E',        // number = bytes of the stream
  kDone = 'D',       // the answer
  kFailed = 'F',     // from either side, which then closes: number = ErrorCode; text = why
};

struct Frame {
  FrameKind kind = FrameKind::kHeartbeat;
  std::uint32_t length = 0;  // of the block or text
  std::uint64_t number = 0;
  std::string text{};  // not of blocks
};

// One side of a stream: the rank that opened it calls `send` and `finish`, the other `receive`.
// Releasing it before `finish` returned, or before `receive` returned 0, fails the other side.
class DataStream {
 public:
  DataStream(Socket socket, std::unique_ptr<ByteSocket> bytes, SharedWindow window, Duration silence)
      : socket_(std::move(socket)), silence_(silence), window_(std::move(window)), bytes_(std::move(bytes)) {}
  ~DataStream() {
    if (::getpid() == process_) fail(ErrorCode::kUnavailable, "the peer left the stream early");
  }

  // Returns once the bytes are copied or handed to the kernel; `bytes` is borrowed for the call.
  // Blocks while the receiver is slow and alive.
  void send(ByteSpan bytes);
  // Ends the stream. Returns once the receiver has taken and checked every byte. Blocks as `send`.
  void finish();
  // Receives the next 1 to `to.size()` bytes, and returns their number; 0 is the end of the stream.
  // Bytes are checked before they are returned; after an error `to` is unspecified. The borders
  // between calls of `send` are not kept. A buffer of at least kDataBlockBytesMax saves a copy.
  // `to` must not be empty. Blocks while the sender is slow and alive.
  std::size_t receive(MutableByteSpan to);
  // Ends the stream: the other side's call throws an error of this code, with the first 1,024 bytes
  // of `why`. Does not block; if the window is full, the other side sees kUnavailable. Any thread
  // may call it, which also ends a call that waits.
  void fail(ErrorCode code, const std::string& why) noexcept;
  // Returns why the stream uses TCP; "" if it uses shared memory.
  const std::string& why_tcp() const { return why_tcp_; }

  int descriptor() const { return socket_.get(); }
  bool uses_shared_memory() const { return window_.size() > 0; }
  // Called before other threads know the stream.
  void set_peer(int rank, std::uint64_t stream, bool is_sender, const std::string& why_tcp);

  void send_frame(FrameKind kind, std::uint64_t number, ByteSpan body = {});
  // Waits for the peer's next frame. Throws kCorrupt unless it is of this kind and number.
  void expect(FrameKind kind, std::uint64_t number);
  // Returns the peer's first frame, if it has arrived.
  std::optional<Frame> try_receive();
  // Sends a heartbeat, unless a frame is being sent or the peer has not read all. Does not block.
  void beat() noexcept;
  // Returns whether the peer has closed the connection.
  bool is_cut() const;
  // Ends the stream here: waiting and later calls throw this, unless it has ended before.
  void end(ErrorCode code, const std::string& why) noexcept;

 private:
  // Calls `call` with the lock. If it fails, ends the stream and throws the reason.
  template <class Call>
  void guarded(Call call);
  void put_frame(FrameKind kind, std::uint64_t number, ByteSpan body) CAIRN_REQUIRES(io_);
  void put_all(ByteSpan bytes) CAIRN_REQUIRES(io_);
  void get_all(MutableByteSpan to) CAIRN_REQUIRES(io_);
  void get_block(const Frame& frame, MutableByteSpan to) CAIRN_REQUIRES(io_);
  Frame get_frame() CAIRN_REQUIRES(io_);
  std::optional<Frame> next_frame() CAIRN_REQUIRES(io_);
  void take_answers() CAIRN_REQUIRES(io_);
  void wait(bool for_room) CAIRN_REQUIRES(io_);
  char* slot() const CAIRN_REQUIRES(io_) { return window_.data() + blocks_ * kDataBlockBytesMax % window_.size(); }
  void check_ended();

  const pid_t process_ = ::getpid();  // a forked child shares the connection, but not the stream
  const Socket socket_;
  const Duration silence_;
  const SharedWindow window_;
  std::string name_ = "a new stream";
  std::string why_tcp_;
  bool is_sender_ = false;
  int peer_ = -1;  // unknown: a stranger, who is told nothing
  // These are used by the caller's thread only.
  std::uint64_t offset_ = 0;
  std::string rest_;  // of the last block, from `taken_` on
  std::size_t taken_ = 0;
  bool has_all_ = false;

  Mutex io_;  // held while a frame is sent, so that no heartbeat gets into it
  const std::unique_ptr<ByteSocket> bytes_;
  std::string inbox_ CAIRN_GUARDED_BY(io_);            // the beginning of a frame
  std::uint32_t inbox_crc_ CAIRN_GUARDED_BY(io_) = 0;  // of the last header
  std::uint64_t blocks_ CAIRN_GUARDED_BY(io_) = 0;     // sent or received
  std::size_t slots_in_use_ CAIRN_GUARDED_BY(io_) = 0;
  bool has_spoken_ CAIRN_GUARDED_BY(io_) = false;  // has sent a frame
  MonotonicTime heard_ CAIRN_GUARDED_BY(io_);      // when the peer did something, or the call began
  Mutex ending_;
  std::atomic<bool> has_ended_{false};
  std::optional<Error> reason_ CAIRN_GUARDED_BY(ending_);
};

}  // namespace cairn
