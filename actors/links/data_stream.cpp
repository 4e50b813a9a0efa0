#include <cairn/actors/links/data_stream.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cairn/base/digest.hpp>
#include <cairn/base/units.hpp>
#include <cairn/formats/zip_format.hpp>

namespace cairn {
namespace {

constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kCrcBytes = 4;
constexpr std::size_t kTextBytesMax = 1024;
// Blocks are moved in pieces, each checksummed while it is in the processor's nearest cache. Larger
// pieces save system calls.
constexpr std::size_t kMemoryPieceBytes = 16u << 10;
constexpr std::size_t kSocketPieceBytes = 128u << 10;

std::string encode_header(FrameKind kind, std::uint64_t number, std::size_t length) {
  std::string header{static_cast<char>(kind), '\0', '\0', '\0'};
  zip::put_u32(header, static_cast<std::uint32_t>(length));
  zip::put_u64(header, number);
  return header;
}

[[noreturn]] void throw_failure(const Frame& frame) {
  const bool is_known = frame.number >= 1 && frame.number <= static_cast<std::uint64_t>(ErrorCode::kInternal);
  throw Error(is_known ? static_cast<ErrorCode>(frame.number) : ErrorCode::kCorrupt, "the peer says: " + frame.text);
}

[[noreturn]] void throw_out_of_turn(const Frame& frame) {
  throw Error(ErrorCode::kCorrupt, "the peer sent frame '" + std::string(1, static_cast<char>(frame.kind)) + "' with number " +
                                       std::to_string(frame.number) + " out of turn");
}

template <class Move>
void for_pieces(std::size_t size, std::size_t piece, Move move) CAIRN_NO_THREAD_SAFETY_ANALYSIS {
  for (std::size_t at = 0; at < size; at += piece) move(at, std::min(piece, size - at));
}

class PlainSocket : public ByteSocket {
 public:
  explicit PlainSocket(int descriptor) : descriptor_(descriptor) {}
  std::size_t put(ByteSpan bytes) override {
    return moved(::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  bool flush() override { return true; }
  std::size_t get(MutableByteSpan to) override {
    const auto count = ::recv(descriptor_, to.data(), to.size(), MSG_DONTWAIT);
    if (count == 0) throw Error(ErrorCode::kUnavailable, "the connection was closed");
    return moved(count);
  }

 private:
  static std::size_t moved(ssize_t result) {
    if (result >= 0) return static_cast<std::size_t>(result);
    if (errno == EAGAIN || errno == EINTR) return 0;
    throw Error(ErrorCode::kUnavailable, std::string("the connection was closed: ") + std::strerror(errno));
  }
  const int descriptor_;
};

}  // namespace

ByteSocketFactory plain_socket() {
  return [](ConnectionSide, int descriptor) { return std::make_unique<PlainSocket>(descriptor); };
}

void DataStream::set_peer(int rank, std::uint64_t stream, bool is_sender, const std::string& why_tcp) {
  peer_ = rank;
  is_sender_ = is_sender;
  why_tcp_ = why_tcp;
  name_ = "stream " + std::to_string(stream) + (is_sender ? " to rank " : " from rank ") + std::to_string(rank) +
          (uses_shared_memory() ? " (shared memory)" : " (TCP)");
}

void DataStream::send(ByteSpan bytes) {
  while (!bytes.empty()) {
    const auto length = std::min(kDataBlockBytesMax, bytes.size());
    send_frame(FrameKind::kBlock, offset_, bytes.subspan(0, length));
    offset_ += length;
    bytes = bytes.subspan(length, bytes.size() - length);
  }
}

void DataStream::finish() {
  send_frame(FrameKind::kEnd, offset_);
  expect(FrameKind::kDone, offset_);
  end(ErrorCode::kPrecondition, "it has been finished");
}

std::size_t DataStream::receive(MutableByteSpan to) {
  check_invariant(!to.empty(), "a stream receives into a buffer");
  std::size_t count = 0;
  if (taken_ == rest_.size() && !has_all_) {
    guarded([&]() CAIRN_REQUIRES(io_) {
      const Frame frame = get_frame();
      has_all_ = frame.kind == FrameKind::kEnd;
      if (frame.number != offset_ || (!has_all_ && frame.kind != FrameKind::kBlock) || has_all_ != (frame.length == 0))
        throw_out_of_turn(frame);
      if (frame.length <= to.size()) {
        count = frame.length;
        get_block(frame, to.subspan(0, count));
      } else {
        rest_.resize(frame.length);
        taken_ = frame.length;  // none, if this fails
        get_block(frame, {rest_.data(), rest_.size()});
        taken_ = 0;
      }
      offset_ += frame.length;
    });
    if (has_all_) {
      try {
        send_frame(FrameKind::kDone, offset_);
      } catch (const Error&) {
        // Every byte is here. The sender has ended, and reports that itself.
      }
      end(ErrorCode::kPrecondition, "it has been received");
    }
  }
  if (count > 0 || has_all_) return count;
  count = std::min(to.size(), rest_.size() - taken_);
  std::memcpy(to.data(), rest_.data() + taken_, count);
  taken_ += count;
  return count;
}

void DataStream::fail(ErrorCode code, const std::string& why) noexcept {
  // A thread that is sending a frame holds the lock; the frame cannot be interrupted.
  if (!has_ended_ && peer_ >= 0 && io_.try_lock()) {
    try {
      const std::string text = why.substr(0, kTextBytesMax);
      std::string frame = encode_header(FrameKind::kFailed, static_cast<std::uint64_t>(code), text.size()) + text;
      zip::put_u32(frame, crc32(0, frame));
      bytes_->put(frame);
      bytes_->flush();
    } catch (const std::exception&) {
      // The peer sees the connection close.
    }
    io_.unlock();
  }
  end(code, why);
}

void DataStream::send_frame(FrameKind kind, std::uint64_t number, ByteSpan body) {
  guarded([&]() CAIRN_REQUIRES(io_) { put_frame(kind, number, body); });
}

void DataStream::expect(FrameKind kind, std::uint64_t number) {
  guarded([&]() CAIRN_REQUIRES(io_) {
    const Frame frame = get_frame();
    if (frame.kind != kind || frame.number != number) throw_out_of_turn(frame);
  });
}

std::optional<Frame> DataStream::try_receive() {
  std::optional<Frame> frame;
  guarded([&]() CAIRN_REQUIRES(io_) { frame = next_frame(); });
  return frame;
}

void DataStream::beat() noexcept {
  if (!io_.try_lock()) return;
  try {
    // One that the peer has not read yet says as much as two, and leaves room for answers.
    int unread = 0;
    const bool is_due = has_spoken_ && !has_ended_ && ::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0;
    if (is_due && bytes_->flush() && bytes_->put(".") == 1) bytes_->flush();
  } catch (const std::exception&) {
    // The next call on the stream finds out, after it has received the bytes that are there.
  }
  io_.unlock();
}

bool DataStream::is_cut() const {
  pollfd question{socket_.get(), POLLRDHUP, 0};
  return ::poll(&question, 1, 0) == 1;
}

void DataStream::end(ErrorCode code, const std::string& why) noexcept {
  const MutexLock lock(ending_);
  if (reason_) return;
  reason_.emplace(code, name_ + ": " + why);
  has_ended_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);  // wakes a thread that waits
}

void DataStream::check_ended() {
  if (!has_ended_) return;
  const MutexLock lock(ending_);
  throw Error(*reason_);
}

template <class Call>
void DataStream::guarded(Call call) CAIRN_NO_THREAD_SAFETY_ANALYSIS {
  try {
    const MutexLock lock(io_);
    check_ended();
    heard_ = system_clock().now();
    call();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) fail(error.code(), error.what());
    end(error.code(), error.what());  // no effect if the stream was ended, and the call failed by that
    check_ended();
  }
}

void DataStream::put_frame(FrameKind kind, std::uint64_t number, ByteSpan body) {
  std::string frame = encode_header(kind, number, body.size());
  std::uint32_t crc = crc32(0, frame);
  if (kind != FrameKind::kBlock) {
    frame.append(body.data(), body.size());
    crc = crc32(crc, body);
  } else if (uses_shared_memory()) {
    while (slots_in_use_ * kDataBlockBytesMax == window_.size()) {
      take_answers();
      if (slots_in_use_ * kDataBlockBytesMax == window_.size()) wait(false);
    }
    for_pieces(body.size(), kMemoryPieceBytes, [&](std::size_t at, std::size_t length) CAIRN_REQUIRES(io_) {
      std::memcpy(slot() + at, body.data() + at, length);
      crc = crc32(crc, body.subspan(at, length));
    });
    ++slots_in_use_;
    ++blocks_;
  } else {
    put_all(frame);
    frame.clear();
    for_pieces(body.size(), kSocketPieceBytes, [&](std::size_t at, std::size_t length) CAIRN_REQUIRES(io_) {
      crc = crc32(crc, body.subspan(at, length));
      put_all(body.subspan(at, length));
    });
  }
  zip::put_u32(frame, crc);
  put_all(frame);
  while (!bytes_->flush()) {
    take_answers();
    wait(true);
  }
  has_spoken_ = true;
}

void DataStream::put_all(ByteSpan bytes) {
  while (!bytes.empty()) {
    std::size_t count = 0;
    try {
      count = bytes_->put(bytes);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnavailable) take_answers();  // the peer may have said why it closed
      throw;
    }
    if (count == 0) {
      take_answers();
      wait(true);
    } else {
      heard_ = system_clock().now();
      bytes = bytes.subspan(count, bytes.size() - count);
    }
  }
}

void DataStream::get_all(MutableByteSpan to) {
  const auto early = inbox_.copy(to.data(), to.size());
  inbox_.erase(0, early);
  to = to.subspan(early, to.size() - early);
  while (!to.empty()) {
    const auto count = bytes_->get(to);
    if (count == 0) {
      wait(false);
    } else {
      heard_ = system_clock().now();
      to = to.subspan(count, to.size() - count);
    }
  }
}

void DataStream::get_block(const Frame& frame, MutableByteSpan to) {
  if (to.empty()) return;
  std::uint32_t crc = inbox_crc_;
  for_pieces(to.size(), uses_shared_memory() ? kMemoryPieceBytes : kSocketPieceBytes,
             [&](std::size_t at, std::size_t length) CAIRN_REQUIRES(io_) {
               const auto piece = to.subspan(at, length);
               if (uses_shared_memory()) {
                 std::memcpy(piece.data(), slot() + at, length);
               } else {
                 get_all(piece);
               }
               crc = crc32(crc, piece);
             });
  char trailer[kCrcBytes];
  get_all({trailer, sizeof(trailer)});
  if (zip::get_u32(trailer) != crc)
    throw Error(ErrorCode::kCorrupt,
                "the block of " + human_bytes(to.size()) + " at offset " + std::to_string(frame.number) + " has a wrong checksum");
  ++blocks_;
  if (!uses_shared_memory()) return;
  try {
    const char taken = static_cast<char>(FrameKind::kTaken);
    put_all({&taken, 1});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;  // the sender has ended; bytes that it sent may be left
  }
}

Frame DataStream::get_frame() {
  for (;;) {
    if (auto frame = next_frame()) {
      if (frame->kind == FrameKind::kFailed) throw_failure(*frame);
      return *std::move(frame);
    }
    wait(false);
  }
}

// A receiver sends no frames while it receives, except why it ends the stream.
void DataStream::take_answers() {
  if (!is_sender_) return;
  while (const auto frame = next_frame()) frame->kind == FrameKind::kFailed ? throw_failure(*frame) : throw_out_of_turn(*frame);
}

std::optional<Frame> DataStream::next_frame() {
  for (;;) {
    for (; !inbox_.empty(); inbox_.erase(0, 1)) {
      const bool is_taken = inbox_[0] == static_cast<char>(FrameKind::kTaken);
      // The first frame names the peer, and nothing comes before it.
      if (!is_taken && (inbox_[0] != static_cast<char>(FrameKind::kHeartbeat) || peer_ < 0)) break;
      if (is_taken && slots_in_use_-- == 0) throw Error(ErrorCode::kCorrupt, "the peer has returned a slot too many");
    }
    std::size_t needed = inbox_.empty() ? 1 : kHeaderBytes;
    if (inbox_.size() >= kHeaderBytes) {
      Frame frame{static_cast<FrameKind>(inbox_[0]), zip::get_u32(&inbox_[4]), zip::get_u64(&inbox_[8])};
      const bool is_block = frame.kind == FrameKind::kBlock;
      if (zip::get_u32(&inbox_[0]) >> 8 != 0 || frame.length > (is_block ? kDataBlockBytesMax : kTextBytesMax))
        throw Error(ErrorCode::kCorrupt, "what came is no frame of this protocol");
      needed = is_block ? kHeaderBytes : kHeaderBytes + frame.length + kCrcBytes;
      if (inbox_.size() >= needed) {
        inbox_crc_ = crc32(0, ByteSpan(inbox_.data(), is_block ? needed : needed - kCrcBytes));
        if (!is_block && inbox_crc_ != zip::get_u32(&inbox_[needed - kCrcBytes]))
          throw Error(ErrorCode::kCorrupt, "a frame has a wrong checksum");
        if (!is_block) frame.text = inbox_.substr(kHeaderBytes, frame.length);
        inbox_.erase(0, needed);
        return frame;
      }
    }
    char bytes[kHeaderBytes + kTextBytesMax + kCrcBytes];
    // Blocks in the socket are received in place, so nothing beyond a header is.
    const auto count = bytes_->get({bytes, uses_shared_memory() ? sizeof(bytes) : needed - inbox_.size()});
    if (count == 0) return std::nullopt;
    heard_ = system_clock().now();
    inbox_.append(bytes, count);
  }
}

// Lets heartbeats be sent meanwhile, unless it waits in the middle of a frame.
void DataStream::wait(bool for_room) CAIRN_NO_THREAD_SAFETY_ANALYSIS {
  const bool wants_room = !bytes_->flush() || (for_room && bytes_->lacks_room());
  const auto left = heard_ + silence_ - system_clock().now();
  if (left <= Duration::zero())
    throw Error(ErrorCode::kDeadline, "nothing was heard from the peer for " + human_duration(silence_) +
                                          ": its process is frozen, or its machine or the network is down");
  if (!for_room) io_.unlock();
  pollfd question{socket_.get(), static_cast<short>(wants_room ? POLLIN | POLLOUT : POLLIN), 0};
  ::poll(&question, 1, static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1);
  if (!for_room) io_.lock();
  check_ended();
}

}  // namespace cairn
