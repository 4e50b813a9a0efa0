// Reads the traces of all ranks of a job: lists the job's saves and loads, and returns the events
// of any one of them.
//
//   cairn::TraceDirectory traces("failure-cairn-…");  // reads each file once, keeps a summary
//   cairn::Trace trace = traces.read(traces.attempts().back());  // the events of one save or load
//   for (const auto& [rank, events] : trace.events) …  // in the order of recording
//
// Next steps: trace_messages.hpp pairs sent messages with handled ones, and uses the pairs to align
// the ranks' clocks. trace_chain.hpp follows causes from rank to rank. trace_diagnosis.hpp
// summarises the result.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/base/observer.hpp>
#include <cairn/tracing/process_ends.hpp>
#include <cairn/tracing/trace_file.hpp>

namespace cairn {

struct TracedFile {
  std::string path;
  std::optional<TraceHeader> header;
  std::string fault;  // why it could not be read; "" if it was read
  std::uint64_t events = 0;
  std::vector<TraceDamage> damage;
  std::uint64_t bytes_cut = 0;
};

// One rank's part in a save or load.
struct TracedCall {
  int rank = 0;
  std::uint64_t attempt = 0;  // the attempt's counter, 0 if the rank never received it
  // Number of the call among this rank's calls of the checkpointer; 0 if the trace lacks the
  // beginning of the call.
  std::uint64_t number = 0;
  std::uint64_t ticket = 0;    // ObservedEvent::call in this call's events; 0 if no event has such a value
  std::uint64_t first_id = 1;  // id of the first event; the checkpointer's events after the previous call count
  std::uint64_t last_id = 0;   // id of the outcome if another call follows, otherwise id of the call's last event
  WallTime begin;
  WallTime end;             // time of the outcome, or of the last event
  bool has_ended = false;   // whether the trace contains the call's outcome
  bool is_last = false;     // no later call of the checkpointer follows in the trace
  bool ok = false;          // whether the outcome is a success
  std::optional<Committed> committed;  // as the outcome says
  bool was_called = false;  // false: the rank only heard of the other ranks' call
};

// One save or load, on all ranks that have a trace of it.
struct TracedAttempt {
  std::string job;                 // the incarnation
  std::uint32_t checkpointer = 0;  // as in save ids
  std::uint64_t counter = 0;       // 0: no trace has a counter, for example because the call failed before it began
  std::optional<Operation> operation;  // std::nullopt if the traces lack the beginning
  std::string checkpoint_id;
  std::string save_id;
  std::map<int, TracedCall> calls;  // by rank

  WallTime begin() const;        // the begin of the first call
  WallTime end() const;          // the end of the last call, as far as the traces go
  Duration duration() const;     // of the longest call: no two ranks' clocks are compared
  bool has_failed() const;       // whether it failed on at least one rank
  bool has_ended() const;        // whether it has ended on every rank that has a trace of it
  bool went_wrong() const;       // it has failed, not only by cancellation; or it has neither failed nor ended, and does not run
  bool was_cancelled = false;    // all failures are cancellations; also true if there are none
  // It has not ended, and of the ranks that are still in it, one is known to run now, on this host,
  // and none is known to have ended.
  bool is_running = false;
  std::string operation_name() const;  // "save", "load", "agreement"; "call" if it is unknown
  std::string describe() const;        // "save of 'run/step_100'"
};

// The process that wrote a rank's trace.
struct TracedWriter {
  std::string host;
  std::uint64_t process = 0;
  std::optional<bool> is_running;  // now; no value if it ran on another host, or streamed no events
};

struct TracedJob {
  std::string incarnation;
  int world_size = 0;
  WallTime begin;  // the begin of its first file
  std::map<int, TracedWriter> writers;     // by rank
  std::vector<int> missing;                // ranks without a readable file
  std::map<int, TracedProcess> processes;  // by rank; those whose end is known

  // Returns "rank 3", followed by its process and host if they are known.
  std::string describe(int rank) const;
};

// The events of one attempt. Also contains events that belong to no checkpointer (links, restarts),
// if they happened during the attempt. The texts of events live as long as `names`.
struct Trace {
  TracedAttempt attempt;
  TracedJob job;
  std::map<int, std::vector<ObservedEvent>> events;  // by rank, ascending ids
  bool truncated = false;                            // there were more events than requested; the later ones are missing
  std::vector<std::string> unread;                   // why files could not be read again; a running job deletes its oldest files
  std::shared_ptr<TraceNames> names;

  // Returns null if there is no such event.
  const ObservedEvent* find(int rank, std::uint64_t id) const;
};

class TraceDirectory {
 public:
  // Reads all files `*.trace` in directory `path`, or `path` itself if it is a file. If a directory
  // has no such files but has failure reports (failure-*), reads the latest report that has traces.
  // Also reads other reports of the same call, for the traces of ranks that the latest one lacks.
  // Also reads `*.ends`, in which cairn-launch records how processes ended. An event that several
  // files of a rank contain counts once. Keeps no events, only one record per call and one per 256
  // KiB of a file. If there are no traces, throws kNotFound; the error text names a report without
  // traces, or a place nearby that has traces.
  explicit TraceDirectory(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TracedFile>& files() const { return files_; }
  const std::vector<TracedJob>& jobs() const { return jobs_; }              // in order of their start
  const std::vector<TracedAttempt>& attempts() const { return attempts_; }  // the attempts of all jobs, in order of their start
  // Returns the attempt to look at first, among those that `fits` accepts: the last one for which
  // `went_wrong()` is true, or if there is none, the last one. If that is an agreement, and a save
  // or load went wrong that had not ended when it began, returns this one. Returns null if `fits`
  // accepts none.
  using Fits = std::function<bool(const TracedAttempt&)>;
  const TracedAttempt* most_interesting(const Fits& fits = [](const TracedAttempt&) { return true; }) const;

  static constexpr std::size_t kEventsMax = 2'000'000;
  // Reads again those parts of files that may have events of the attempt. Files that have become
  // unreadable are left out and listed in `Trace::unread`. Returns at most an equal share of
  // `events_max` for each rank.
  Trace read(const TracedAttempt& attempt, std::size_t events_max = kEventsMax) const;

 private:
  // A part of a file. `read` skips the sections that have no events of the attempt.
  struct Section {
    std::uint64_t end = 0;  // offset in the file; a section begins where the one before it ends
    // The lowest and highest `id`, and the lowest and highest `call`, of the section's events. A
    // `call` of 0 is ignored.
    std::uint64_t first_id = UINT64_MAX;
    std::uint64_t last_id = 0;
    std::uint64_t first_call = UINT64_MAX;
    std::uint64_t last_call = 0;
    bool defines_names = false;  // if true, `read` does not skip the section, because later sections may use its names

    void add(const ObservedEvent& event);
    bool may_hold(const TracedCall& call) const;
  };
  static constexpr std::uint64_t kSectionBytes = std::uint64_t{256} * 1024;

  std::string path_;
  std::vector<TracedFile> files_;
  std::map<std::string, std::vector<Section>> sections_;  // by path of a file
  std::vector<TracedJob> jobs_;
  std::vector<TracedAttempt> attempts_;
};

}  // namespace cairn
