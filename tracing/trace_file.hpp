// Trace files, one after the other event: what `cairn trace` and analyses of one's own read. docs/tracing.md specifies the format.
//
//   cairn::TraceFileReader file("failure-cairn-…/rank-00003-….trace");
//   cairn::ObservedEvent event;
//   while (file.next(event)) std::cout << event.name << '\n';
//
// A file that was cut anywhere is read up to the cut. Each record is under a checksum: what is damaged is passed over, and told.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

inline constexpr std::uint32_t kTraceVersion = 1;

enum class TraceSource : std::uint8_t {
  kStream = 1,  // everything, as it happened
  kRing,        // the last events before the file was written
};

// What stands at the beginning of each file.
struct TraceHeader {
  std::uint32_t version = kTraceVersion;
  std::string incarnation;  // of the world, 32 hexadecimal digits: event ids and ranks count within it
  int rank = 0;
  int world_size = 1;
  std::string cairn_version;
  TraceSource source = TraceSource::kStream;
  std::uint32_t part = 1;     // of a stream: which of its files, from 1
  std::uint64_t process = 0;  // its number in its operating system
  std::string host;
  bool contents = false;  // decisions have their contents: `check_traces` can go through them again
  // Both clocks at one moment.
  MonotonicTime monotonic;
  WallTime wall;
};

// Larger contents of an event are left out.
inline constexpr std::uint64_t kTraceContentBytesMax = 64u << 20;

// A run of bytes that are no records as they were written.
struct TraceDamage {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

// Texts that many events share, kept for as long as this lives. Not thread-safe.
class TraceNames {
 public:
  TraceNames();
  ~TraceNames();
  TraceNames(const TraceNames&) = delete;
  TraceNames& operator=(const TraceNames&) = delete;
  std::string_view intern(std::string_view text);

 private:
  struct Set;
  const std::unique_ptr<Set> set_;
};

// Reads one file from its beginning to its end, in bounded memory. Not thread-safe.
class TraceFileReader {
 public:
  // Reads the header. `names` keeps the names of events; null: the reader does. `contents`: of events are to be put together, at most
  // kTraceContentBytesMax in memory; otherwise they are passed over. Throws kNotFound, kPermission or kUnavailable for a file
  // that cannot be read; kCorrupt for one that is no trace, or whose header is damaged or cut off; kUnsupported for a version later than
  // kTraceVersion.
  explicit TraceFileReader(const std::string& path, std::shared_ptr<TraceNames> names = nullptr, bool contents = false);
  ~TraceFileReader();
  TraceFileReader(const TraceFileReader&) = delete;
  TraceFileReader& operator=(const TraceFileReader&) = delete;

  const TraceHeader& header() const;
  // The next event in the order of the file, which may differ from that of the ids where threads met. Its text and content live until
  // the next call, its names as long as `names`; content of which a piece is damaged is empty. False at the end. Throws kUnavailable.
  bool next(ObservedEvent& event);

  // So far; of all of the file once `next` has returned false.
  const std::vector<TraceDamage>& damage() const;
  std::uint64_t bytes_cut() const;  // of a last record that was begun and not ended
  std::uint64_t bytes() const;      // of the file, as far as it was read

 private:
  struct Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
