// The traces of a job's ranks, together: which saves and loads are in them, and all events of one of these.
//
//   cairn::TraceDirectory traces("failure-cairn-…");                 // reads every file once, keeps little of it
//   cairn::Trace trace = traces.read(traces.attempts().back());      // the events of one save or load, on all ranks
//   for (const auto& [rank, events] : trace.events) …                // in the order in which that rank recorded them
//
// From there on: trace_messages.hpp joins what was sent with what was handled, and aligns the ranks' clocks by it; trace_chain.hpp follows
// causes from rank to rank, trace_diagnosis.hpp says what a person wants to know first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/observer.hpp>
#include <cairn/tracing/trace_file.hpp>

namespace cairn {

struct TracedFile {
  std::string path;
  std::optional<TraceHeader> header;
  std::string fault;  // why nothing of it could be read; "": it was
  std::uint64_t events = 0;
  std::vector<TraceDamage> damage;
  std::uint64_t bytes_cut = 0;
};

// One rank's part in a save or load.
struct TracedCall {
  int rank = 0;
  std::uint64_t attempt = 0;   // the attempt's counter, 0 if the rank never heard it
  std::uint64_t number = 0;    // which call of its checkpointer it is on this rank, 0 if its beginning is not in the trace
  std::uint64_t first_id = 1;  // of its events, with what came before it since the last call of that checkpointer
  std::uint64_t last_id = 0;   // up to the next call
  WallTime begin;
  WallTime end;             // of the outcome, or of the last event
  bool has_ended = false;   // its outcome is in the trace
  bool ok = false;          // of the outcome
  std::string committed;    // of the outcome: "no", "yes", "unknown"
  bool was_called = false;  // otherwise the rank has heard of the others' call only
};

// One save or load, on all ranks that have a trace of it.
struct TracedAttempt {
  std::string job;                 // the incarnation
  std::uint32_t checkpointer = 0;  // as in save ids
  std::uint64_t counter = 0;       // 0: it failed before it was an attempt
  std::string operation;           // "save", "load"; "call" if no beginning of it is in the traces
  std::string checkpoint_id;
  std::string save_id;
  std::map<int, TracedCall> calls;  // by rank

  WallTime begin() const;        // of the first call
  WallTime end() const;          // of the last one, as far as the traces go
  bool has_failed() const;       // on some rank
  bool has_ended() const;        // on every rank that has a trace of it
  bool went_wrong() const;       // failed, but not by being cancelled only, or has not ended
  bool was_cancelled = false;    // all of its failures are cancellations
  std::string describe() const;  // "save of 'run/step_100'"
};

struct TracedJob {
  std::string incarnation;
  int world_size = 0;
  WallTime begin;  // of its first file
  std::map<int, std::string> hosts;
  std::vector<int> missing;  // ranks without a file that can be read
};

// The events of one attempt, and those of no checkpointer (links, restarts) that happened during it. Texts live as long as it does.
struct Trace {
  TracedAttempt attempt;
  TracedJob job;
  std::map<int, std::vector<ObservedEvent>> events;  // by rank, ascending ids
  bool truncated = false;                            // there were more than were asked for: the later ones are left out
  std::vector<std::string> unread;                   // why a file could not be read again: a job that runs takes away its oldest
  std::shared_ptr<TraceNames> names;

  // Null if it is not there.
  const ObservedEvent* find(int rank, std::uint64_t id) const;
};

class TraceDirectory {
 public:
  // Reads all files `*.trace` in `path`, or `path` itself if it is one. Where there are none, but reports of failures (failure-*), it takes
  // the latest of these. What rings of one rank both hold counts once. Keeps a record per call, no events. Throws kNotFound if there is nothing
  // to read, saying what is there.
  explicit TraceDirectory(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TracedFile>& files() const { return files_; }
  const std::vector<TracedJob>& jobs() const { return jobs_; }              // in the order in which they began
  const std::vector<TracedAttempt>& attempts() const { return attempts_; }  // of all jobs, in the order in which they began
  // What is looked at first, among those that `fits`: the last one that has failed (not by being cancelled), or never ended; else the last
  // one. Null: there is none.
  using Fits = std::function<bool(const TracedAttempt&)>;
  const TracedAttempt* most_interesting(const Fits& fits = [](const TracedAttempt&) { return true; }) const;

  static constexpr std::size_t kEventsMax = 2'000'000;
  // Reads the files again; what cannot be read any more is left out, and told. Of each rank at most its share of `events_max`.
  Trace read(const TracedAttempt& attempt, std::size_t events_max = kEventsMax) const;

 private:
  std::string path_;
  std::vector<TracedFile> files_;
  std::vector<TracedJob> jobs_;
  std::vector<TracedAttempt> attempts_;
};

}  // namespace cairn
