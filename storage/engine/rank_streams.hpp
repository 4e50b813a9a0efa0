// The streams of one read from and to other ranks, as ReadJob uses them. actors/read_streams.hpp
// implements them.
#pragma once

#include <cstdint>
#include <string>

#include <cairn/base/bytes.hpp>

namespace cairn {

// Thrown by `receive` if the rank failed to read, or this one was stopped. Whoever failed ends the
// load.
struct ReaderFailed {};

// The two directions, and different ranks, may be used by different threads at once.
class RankStreams {
 public:
  virtual ~RankStreams() = default;  // fails what has not ended
  // Blocks while the rank is slow. Sends nothing more to a rank that cannot be reached.
  virtual void send(std::uint32_t to, ByteSpan bytes) noexcept = 0;
  // Ends what this rank sends, once all of it has been received.
  virtual void finish_sending() noexcept = 0;
  // Ends all streams, because this rank has failed or is to stop: calls that wait return, and the
  // other ranks learn it. Does not block. Any thread may call it, any number of times.
  virtual void stop() noexcept = 0;
  // Receives nothing from the rank, and tells it `why`. Call it before any `receive` from it.
  // Blocks until the rank has opened its stream.
  virtual void decline(std::uint32_t from, const std::string& why) noexcept = 0;
  // Fills `bytes`. Returns false if nothing more can come from the rank, whatever the reason.
  // Throws kCorrupt if the rank has sent all, and less than this.
  virtual bool receive(std::uint32_t from, MutableByteSpan bytes) = 0;
  // Lets the sender end, after the last byte. Throws kCorrupt if it has sent more.
  virtual void finish_receiving(std::uint32_t from) = 0;
  // Reports the streams that broke, unless this rank was stopped. Call it last.
  virtual void report() noexcept = 0;
};

}  // namespace cairn
