// Writes trace files: a stream of all events of a rank, or the events of a ring at once. Internal.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/bytes.hpp>
#include <cairn/base/descriptor.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/base/observer.hpp>
#include <cairn/tracing/trace_file.hpp>

namespace cairn {

// Returns a header with the version, this process and host, and both clocks read now. The arguments
// supply the rest, except `part`.
TraceHeader trace_header(std::string incarnation, int rank, int world_size, TraceSource source);

// Returns "rank-00003-1f2e3d4c-001.trace": rank, start of the incarnation, part.
std::string trace_file_name(const TraceHeader& header);

// Encodes one file. Not thread-safe. Does not allocate once its buffers have grown and all names
// are known.
class TraceEncoder {
 public:
  TraceEncoder();
  ~TraceEncoder();

  // Append whole records to `bytes`.
  void header(const TraceHeader& header, Bytes& bytes);
  void event(const ObservedEvent& event, Bytes& bytes);

 private:
  struct Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Writes `events` as one file, atomically; replaces an existing file. Throws kNotFound,
// kPermission, kNoSpace and kUnavailable.
void write_trace_file(const std::string& path, const TraceHeader& header, const std::vector<ObservedEvent>& events);

// Writes all events of one rank to files in a directory as they happen. When a file reaches a
// quarter of `bytes_max`, a new file begins; the last four files are kept. Each event is passed to
// the operating system at once, on the thread where it happens, so events survive a crash of the
// process but not of the machine. Use a fast local directory. A write error ends the stream and
// logs a warning; it has no other effect.
class TraceStream final : public Observer {
 public:
  static constexpr std::uint64_t kBytesMax = 256u << 20;

  // Creates the directory and the first file. Throws as write_trace_file does. `next` also gets
  // every event, before it is written; may be null.
  TraceStream(std::string directory, TraceHeader header, std::uint64_t bytes_max = kBytesMax,
              std::shared_ptr<Observer> next = nullptr);

  void on_event(const ObservedEvent& event) noexcept override;

 private:
  void open_part() CAIRN_REQUIRES(mutex_);
  void write(ByteSpan bytes) CAIRN_REQUIRES(mutex_);
  void write_event(const ObservedEvent& event) CAIRN_REQUIRES(mutex_);

  const std::string directory_;
  const std::uint64_t part_bytes_max_;
  const std::shared_ptr<Observer> next_;
  Mutex mutex_;
  TraceHeader header_ CAIRN_GUARDED_BY(mutex_);
  std::unique_ptr<TraceEncoder> encoder_ CAIRN_GUARDED_BY(mutex_);
  Descriptor file_ CAIRN_GUARDED_BY(mutex_);  // none: the stream has ended
  std::string path_ CAIRN_GUARDED_BY(mutex_);
  std::uint64_t part_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::deque<std::string> earlier_ CAIRN_GUARDED_BY(mutex_);  // paths of the earlier parts, oldest first
  Bytes buffer_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
