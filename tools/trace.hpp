// `cairn trace`: analyses the traces that ranks recorded of a save or load. Each command prints its
// result as text or JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <cairn/tools/commands.hpp>
#include <cairn/tracing/trace_chain.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>
#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_explanation.hpp>
#include <cairn/tracing/trace_messages.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn::tools {

// The options of `cairn trace` and of the commands below it, of which each has some.
struct TraceOptions {
  std::string directory;
  // Selects the attempt by its counter ("2" or "save:2"), its save id or a part of the checkpoint's
  // id. "last" selects the last save or load, and "" the most interesting attempt.
  std::string attempt;
  std::string job;    // the first characters of an incarnation; "": any
  std::string after;  // only attempts that began later: seconds since 1970, or "2030-12-31T23:59:59", UTC; "": any time
  bool json = false;

  std::optional<int> rank;
  unsigned columns = 0;  // of the timeline; 0: as many as fit the terminal
  bool all = false;      // list agreements even if they did not go wrong
  std::string format;    // of the export: "perfetto" or "html"
  std::string output;    // of the export; "" or "-": standard output

  // These select messages.
  std::string actor;
  std::string name;   // part of a message type, hook or state
  std::string kind;   // "sent", "handled", …
  std::string phase;  // "write"
  std::string text;   // anywhere in the line
  std::string since;  // seconds since the beginning of the attempt, or a time of day
  std::string until;
  bool failed = false;
  std::uint64_t limit = 0;  // 0: no limit
};

// The commands. The export is of the attempt that the options name, or of all saves and loads of
// the job if they name none.
using TraceCommand = int(const TraceOptions& options);
TraceCommand trace_summary, trace_list, trace_explain, trace_messages, trace_timeline, trace_critical_path, trace_export;

// Returns the slowest of the attempts in `directory`, except `shown`, that took several times as
// long as others of their kind; null if there is none.
const TracedAttempt* slowest_beside(const TraceDirectory& directory, const TracedAttempt& shown);

// --- shared by the commands ---

inline constexpr std::size_t kTraceIndent = 14;  // indents the continuation of a line that is wider than the terminal

inline constexpr std::size_t kNameColumns = 11;
// Returns a line of a summary: a name of `kNameColumns`, then a text.
std::string named_line(const char* name, const std::string& text);

// Throws WrongUse if there are no traces, with a list of what is there.
std::shared_ptr<const TraceDirectory> open_traces(const std::string& path);

// An attempt and everything computed from it.
struct OpenedTrace {
  OpenedTrace(std::shared_ptr<const TraceDirectory> in, const TracedAttempt& attempt);

  std::shared_ptr<const TraceDirectory> directory;
  Trace trace;
  std::vector<TracedMessage> messages;
  TraceClocks clocks;
  Diagnosis diagnosis;

  // Returns `time` in seconds since the beginning of the attempt.
  double seconds(WallTime time) const;
};
OpenedTrace open_chosen(const TraceOptions& choice);

struct ListedAttempt {
  const TracedAttempt* attempt = nullptr;
  bool is_slow = false;      // it took several times as long as others of its kind
  bool is_exported = false;  // the export contains its events
};
Json to_json(const ListedAttempt& listed);

// The saves and loads to export: the chosen one, or all of the job. The number of exported events
// is bounded. Events of attempts that went wrong or were slow are taken first, then of the latest.
struct JobToExport {
  explicit JobToExport(const TraceOptions& choice);

  std::shared_ptr<const TraceDirectory> directory;
  const TracedAttempt* first;           // the one to look at first
  std::vector<ListedAttempt> attempts;  // in order of their start
};

std::vector<std::string> summary_lines(const OpenedTrace& opened);  // at most ten
// Returns the lines that tell what a running call waits for, and which hooks are running.
std::vector<std::string> running_lines(const OpenedTrace& opened);
Json hooks_json(const OpenedTrace& opened);
std::string failure_line(const TracedJob& job, const TracedFailure& failure);
// Returns "its last call was the save of 'run/step_100'", as far as the traces tell.
std::string last_call_of(const TraceDirectory& directory, const TracedJob& job, int rank);
std::string trace_events_json(const JobToExport& job);                                          // Perfetto's format
std::string trace_page(const JobToExport& job);                                                 // HTML
// The page that `trace_page` fills; the build makes it from html/. Contains two placeholders, each
// once: `<!--summary-->`, for browsers without JavaScript, then `<!--data-->`.
extern const std::string_view kTracePageTemplate;

// Returns the stacks of the attempt, or of one rank, with their functions as far as addr2line knows
// them. With `print`, also prints them.
Json trace_stacks(const OpenedTrace& opened, std::optional<int> rank, bool print);

double in_seconds(Duration duration);
// Describes the action of the actor of a kState event: "met the deadline for …". For states of the
// protocol machines, use describe_event.
std::string describe_state(const ObservedEvent& event);
std::string describe_event(const ObservedEvent& event);  // "coordinator handled Written from rank 2"
Json to_json(const OpenedTrace& opened, const ObservedEvent& event);
Json to_json(const TracedAttempt& attempt);
Json to_json(const std::vector<TracedPhase>& phases);

}  // namespace cairn::tools
