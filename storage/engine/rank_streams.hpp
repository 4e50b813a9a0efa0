// The streams of one read from and to other ranks, as ReadJob uses them. actors/read_streams.hpp
// implements them.
#pragma once

#include <cstdint>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Thrown by `receive` if the rank failed to read. Its own failure ends the load.
struct ReaderFailed {};

// The two directions, and different ranks, may be used by different threads at once.
class RankStreams {
 public:
  virtual ~RankStreams() = default;  // fails what has not ended
  // Blocks while the rank is slow. A rank that cannot be reached gets nothing any more.
  virtual void send(std::uint32_t to, ByteSpan bytes) noexcept = 0;
  // Ends what this rank sends, once all of it has been received.
  virtual void finish_sending() noexcept = 0;
  // Tells the receivers that this rank has failed to read.
  virtual void fail() noexcept = 0;
  // Fills `bytes`. Returns false if nothing more can come from the rank, whatever the reason.
  virtual bool receive(std::uint32_t from, MutableByteSpan bytes) = 0;
  // Lets the sender end: all of its bytes are here if `is_complete`, or nobody takes any more.
  virtual void end_receiving(std::uint32_t from, bool is_complete) noexcept = 0;
};

}  // namespace cairn
