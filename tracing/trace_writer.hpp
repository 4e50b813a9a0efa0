// Trace files being written: a stream of all events of a rank, and the events of a ring at once. Internal.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/tracing/trace_file.hpp>

namespace cairn {

// Version, process, host and the clocks as they are here and now; the rest is the caller's.
TraceHeader trace_header(std::string incarnation, int rank, int world_size, TraceSource source);

// "rank-00003-1f2e3d4c-001.trace": rank, the beginning of the incarnation, part.
std::string trace_file_name(const TraceHeader& header);

// The bytes of one file. Not thread-safe; allocates nothing once its buffers have grown and its names are known.
class TraceEncoder {
 public:
  TraceEncoder();
  ~TraceEncoder();
  TraceEncoder(const TraceEncoder&) = delete;
  TraceEncoder& operator=(const TraceEncoder&) = delete;

  // Each appends whole records to `bytes`.
  void header(const TraceHeader& header, Bytes& bytes);
  void event(const ObservedEvent& event, Bytes& bytes);

 private:
  struct Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Writes `events` as one file, which is there as a whole or not at all; one of that name is replaced. Throws kNotFound, kPermission,
// kNoSpace, kUnavailable.
void write_trace_file(const std::string& path, const TraceHeader& header, const std::vector<ObservedEvent>& events);

// All events of one rank, as they happen, in files of a directory; a file that has grown to a quarter of `bytes_max` is followed by the
// next, and the oldest one goes. Each event is given to the operating system at once, on the thread that it happens on: it outlives the
// process, not the machine. The directory should be a fast one of this machine.
// What cannot be written ends the stream, with a warning in the log, and nothing else.
class TraceStream final : public Observer {
 public:
  static constexpr std::uint64_t kBytesMax = 256u << 20;
  // With contents: those that lack their beginning cannot be gone through again.
  static constexpr std::uint64_t kBytesMaxWithContents = std::uint64_t{4} << 30;

  // Makes the directory, and in it the first file. Throws as write_trace_file.
  TraceStream(std::string directory, TraceHeader header, std::uint64_t bytes_max = kBytesMax);
  ~TraceStream() override;
  TraceStream(const TraceStream&) = delete;
  TraceStream& operator=(const TraceStream&) = delete;

  void on_event(const ObservedEvent& event) noexcept override;

 private:
  void open_part();
  void write(ByteSpan bytes);
  void write_event(const ObservedEvent& event);

  const std::string directory_;
  const std::uint64_t part_bytes_max_;
  std::mutex mutex_;
  TraceHeader header_;
  std::unique_ptr<TraceEncoder> encoder_;
  int file_ = -1;  // -1: the stream has ended
  std::string path_;
  std::uint64_t part_bytes_ = 0;
  std::deque<std::string> earlier_;  // paths of the parts before this one, oldest first
  Bytes buffer_;
};

}  // namespace cairn
