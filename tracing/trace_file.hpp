// Reads trace files event by event, for `cairn trace` and your own analyses. docs/tracing.md
// specifies the format.
//
//   cairn::TraceFileReader file("failure-cairn-…/rank-00003-….trace");
//   cairn::ObservedEvent event;
//   while (file.next(event)) std::cout << cairn::name_of(event) << '\n';
//
// A truncated file is read up to the cut. A checksum protects each record: damaged parts are
// skipped and reported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <cairn/base/clock.hpp>
#include <cairn/base/observer.hpp>

namespace cairn {

inline constexpr std::uint32_t kTraceVersion = 2;

enum class TraceSource : std::uint8_t {
  kStream = 1,  // all events as they happened
  kRing,        // the last events before the file was written
};

// The header of each file.
struct TraceHeader {
  std::uint32_t version = kTraceVersion;
  std::string incarnation;  // 32 hexadecimal digits that identify the world; event ids and ranks are unique within it
  int rank = 0;
  int world_size = 1;
  std::string cairn_version;
  TraceSource source = TraceSource::kStream;
  std::uint32_t part = 1;     // for a stream: the number of this file, from 1
  std::uint64_t process = 0;  // process id
  std::string host;
  // The same moment on the monotonic clock and on the wall clock.
  MonotonicTime monotonic;
  WallTime wall;
};

// A range of bytes that contains no valid records.
struct TraceDamage {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

// Stores texts that many events share. The texts live as long as this object. Not thread-safe.
class TraceNames {
 public:
  TraceNames() = default;
  TraceNames(const TraceNames&) = delete;
  TraceNames& operator=(const TraceNames&) = delete;
  std::string_view intern(std::string_view text);

 private:
  std::set<std::string, std::less<>> texts_;
};

// Reads one file from start to end in bounded memory. Not thread-safe.
class TraceFileReader {
 public:
  // Reads the header. `names` stores the names of events; if null, the reader stores them. Throws
  // kNotFound, kPermission or kUnavailable if the file cannot be read. Throws kCorrupt if it is not
  // a trace, or its header is damaged or truncated. Throws kUnsupported for a version other than
  // kTraceVersion.
  explicit TraceFileReader(const std::string& path, std::shared_ptr<TraceNames> names = nullptr);
  ~TraceFileReader();

  const TraceHeader& header() const;
  // Reads the next event in file order, which may differ from the order of ids if several threads
  // recorded events. The event's text is valid until the next call. Its names are valid as long as
  // the TraceNames object that stores them exists (or, if `names` was null, as long as the reader
  // exists). Returns false at the end. Throws kUnavailable.
  bool next(ObservedEvent& event);
  // Continues at `offset`, a value of `bytes()` from an earlier reading of this file. Goes forward
  // only. A name that the skipped part defines reads as "?" in later events.
  void skip_to(std::uint64_t offset);
  // Returns how many names the file has defined so far.
  std::size_t names_defined() const;

  // These functions describe what has been read so far. Once `next` has returned false, that is the
  // whole file.
  const std::vector<TraceDamage>& damage() const;
  std::uint64_t bytes_cut() const;  // the size of an incomplete last record
  std::uint64_t bytes() const;      // the position up to which the file was read; at the end, the size of the file

 private:
  struct Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace cairn
