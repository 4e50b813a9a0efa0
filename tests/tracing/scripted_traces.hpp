// Traces of a fictitious job. A test says what happened when, and gets the trace files that the
// ranks would have written.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/tracing/sample_events.hpp>
#include <cairn/tracing/trace_directory.hpp>

namespace cairn::testing {

inline constexpr std::uint32_t kCheckpointer = 0x1234;

// Times are milliseconds of world time; each rank stamps events with its own clocks.
class ScriptedTraces {
 public:
  explicit ScriptedTraces(int world_size, std::string incarnation = std::string(32, 'a'))
      : world_size_(world_size), incarnation_(std::move(incarnation)) {}

  // A message between ranks, or one of a name that no version knows.
  struct Message {
    Message(MessageKind kind) : what(kind) {}
    Message(LinkChange change) : what(change) {}
    Message(const char* unknown) : name(unknown) {}
    What what;
    std::string_view name;
  };

  // Sets how far that rank's wall clock is ahead of world time, in milliseconds. The
  // monotonic clocks of ranks start at different values.
  void set_ahead(int rank, double milliseconds) { ahead_[rank] = milliseconds; }
  void set_attempt(std::uint64_t counter) { attempt_ = counter; }
  // Sets the call of the following events.
  void set_call(std::uint64_t ticket) { call_ = ticket; }

  std::uint64_t add(int rank, double time, ObservedEvent event) {
    auto& events = events_[rank];
    event.id = events.size() + 1;
    event.rank = rank;
    event.time = at_ms(time + 1e6 * (rank + 1));
    event.wall_time = wall_at(rank, time);
    if (event.checkpointer == 0 && event.as<LinkChange>() == nullptr) event.checkpointer = kCheckpointer;
    if (event.call == 0) event.call = call_;
    if (event.attempt == 0 && event.kind != EventKind::kCall) event.attempt = attempt_;
    events.push_back(event);
    return event.id;
  }
  std::uint64_t call(int rank, double time, std::uint64_t number = 1) {
    ObservedEvent event = subject(EventKind::kCall, Operation::kSave, Actor::kRuntime);
    event.number = number;
    event.text = "run/step_1";
    return add(rank, time, event);
  }
  std::uint64_t state(int rank, double time, RankState state, std::uint64_t cause = 0) {
    ObservedEvent event = subject(EventKind::kState, state, Actor::kSupervisor);
    event.cause = cause;
    return add(rank, time, event);
  }
  std::uint64_t state(int rank, double time, CoordinatorState state, std::uint64_t cause = 0) {
    ObservedEvent event = subject(EventKind::kState, state, Actor::kCoordinator);
    event.cause = cause;
    return add(rank, time, event);
  }
  std::uint64_t restarted(int rank, double time) {
    ObservedEvent event = subject(EventKind::kState, Restarted{}, Actor::kSupervisor);
    event.ok = false;
    return add(rank, time, event);
  }
  std::uint64_t ignored(int rank, double time, std::string_view why) {
    ObservedEvent event = subject(EventKind::kState, Ignored::kInput, Actor::kSupervisor);
    event.name = why;
    event.ok = false;
    return add(rank, time, event);
  }
  std::uint64_t send(int from, int to, double time, Message message, std::uint64_t cause = 0) {
    ObservedEvent event = subject(EventKind::kSent, message.what, Actor::kSupervisor);
    event.name = message.name;
    event.peer = to;
    event.cause = cause;
    return add(from, time, event);
  }
  std::uint64_t handle(int to, int from, double time, Message message, std::uint64_t cause) {
    ObservedEvent event = subject(EventKind::kHandled, message.what, Actor::kSupervisor);
    event.name = message.name;
    event.peer = from;
    event.cause = cause;
    return add(to, time, event);
  }
  // Records a message sent and handled. Returns the id of the handling.
  std::uint64_t pass(int from, int to, double sent, double handled, Message message, std::uint64_t cause = 0) {
    return handle(to, from, handled, message, send(from, to, sent, message, cause));
  }
  std::uint64_t began(int rank, double time, std::string_view hook, Phase phase, std::uint64_t cause = 0, std::uint64_t bytes = 0) {
    ObservedEvent event = subject(EventKind::kBegan, {}, Actor::kStorage);
    event.name = hook;
    event.phase = phase;
    event.cause = cause;
    event.bytes = bytes;
    return add(rank, time, event);
  }
  std::uint64_t ended(int rank, double time, std::string_view hook, Phase phase, std::uint64_t began, double duration,
                      std::string_view failure = {}) {
    ObservedEvent event = subject(EventKind::kOperation, {}, Actor::kStorage);
    event.name = hook;
    event.phase = phase;
    event.cause = began;
    event.duration = at_ms(duration) - at_ms(0);
    event.ok = failure.empty();
    event.text = failure;
    return add(rank, time, event);
  }
  std::uint64_t failure(int rank, double time, int whose, FailureKind kind, Phase phase, std::string_view text,
                        std::uint64_t position = 0) {
    ObservedEvent event = subject(EventKind::kFailure, kind, Actor::kSupervisor);
    event.peer = whose == rank ? -1 : whose;
    event.phase = phase;
    event.code = ErrorCode::kUnavailable;
    event.text = text;
    event.number = position;
    event.ok = false;
    return add(rank, time, event);
  }
  std::uint64_t outcome(int rank, double time, bool ok, std::uint64_t cause = 0) {
    ObservedEvent event = subject(EventKind::kOutcome, ok ? Committed::kYes : Committed::kNo, Actor::kSupervisor);
    event.ok = ok;
    event.cause = cause;
    return add(rank, time, event);
  }

  std::string path_of(int rank) const {
    return directory_.path() + "/" + trace_file_name(header_of(rank, world_size_, incarnation_));
  }
  // Writes one file per rank, except for ranks in `left_out`.
  std::string write(const std::vector<int>& left_out = {}) const {
    for (const auto& [rank, events] : events_) {
      if (std::find(left_out.begin(), left_out.end(), rank) != left_out.end()) continue;
      write_trace_file(path_of(rank), header_of(rank, world_size_, incarnation_), events);
    }
    return directory_.path();
  }
  // Writes the files of `ranks` to a separate directory. Returns the directory.
  std::string write_only(const std::vector<int>& ranks) const {
    const std::string place = directory_.path() + "/some";
    std::filesystem::create_directory(place);
    for (const int rank : ranks) {
      const TraceHeader header = header_of(rank, world_size_, incarnation_);
      write_trace_file(place + "/" + trace_file_name(header), header, events_.at(rank));
    }
    return place;
  }
  // Writes the file of a ring with events `first` to `last` of that rank, snapshotted at world time
  // `time`.
  void write_ring(const std::string& name, int rank, std::uint64_t first, std::uint64_t last, double time) const {
    const auto& events = events_.at(rank);
    TraceHeader header = header_of(rank, world_size_, incarnation_);
    header.source = TraceSource::kRing;
    header.wall = wall_at(rank, time);
    write_trace_file(directory_.path() + "/" + name, header,
                     {events.begin() + static_cast<std::ptrdiff_t>(first) - 1, events.begin() + static_cast<std::ptrdiff_t>(last)});
  }
  // Returns the id of the rank's last event so far, or 0 if there is none.
  std::uint64_t last_id(int rank) const { return events_.count(rank) == 0 ? 0 : events_.at(rank).size(); }
  const std::string& directory() const { return directory_.path(); }
  const std::vector<ObservedEvent>& events(int rank) const { return events_.at(rank); }

 private:
  WallTime wall_at(int rank, double time) const {
    const auto ahead = ahead_.find(rank);
    return WallTime(std::chrono::seconds(1'700'000'000)) + (at_ms(time + (ahead == ahead_.end() ? 0 : ahead->second)) - at_ms(0));
  }
  static ObservedEvent subject(EventKind kind, const What& what, Actor actor) {
    ObservedEvent event;
    event.kind = kind;
    event.what = what;
    event.actor = actor;
    return event;
  }

  const int world_size_;
  const std::string incarnation_;
  TemporaryDirectory directory_;
  std::uint64_t attempt_ = 1;
  std::uint64_t call_ = 0;
  std::map<int, double> ahead_;
  std::map<int, std::vector<ObservedEvent>> events_;
};

// Scripts a successful save that rank 0 coordinates. `write_ms[rank]` is the duration of that
// rank's write.
inline void script_good_save(ScriptedTraces& script, const std::vector<double>& write_ms, double begin = 0,
                             std::uint64_t number = 1) {
  const int size = static_cast<int>(write_ms.size());
  std::uint64_t all_joined = 0;
  for (int rank = 0; rank < size; ++rank) {
    const double at = begin + rank;
    const auto call = script.call(rank, at, number);
    script.state(rank, at + 0.1, RankState::kJoining, call);
    if (rank == 0) script.state(0, begin + 0.2, CoordinatorState::kJoining, call);
    if (rank != 0) all_joined = script.pass(rank, 0, at + 0.2, at + 0.5, MessageKind::kJoin, call);
  }
  const double planning = begin + size;
  script.state(0, planning, CoordinatorState::kLocalPlans, all_joined);
  std::uint64_t all_planned = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto begun =
        rank == 0 ? all_joined : script.pass(0, rank, planning + 0.1, planning + 0.4, MessageKind::kBegin, all_joined);
    script.state(rank, planning + 0.5, RankState::kPreparing, begun);
    script.state(rank, planning + 1.5, RankState::kPlanned, begun);
    if (rank != 0)
      all_planned = script.pass(rank, 0, planning + 1.6, planning + 1.9 + 0.01 * rank, MessageKind::kLocalSavePlan, begun);
  }
  const double moving = planning + 3;
  script.state(0, planning + 2.5, CoordinatorState::kGlobalPlan, all_planned);
  script.state(0, moving, CoordinatorState::kMoving, all_planned);
  std::vector<std::tuple<double, int, std::uint64_t>> arrivals;
  for (int rank = 0; rank < size; ++rank) {
    const auto plan =
        rank == 0 ? all_planned : script.pass(0, rank, moving + 0.1, moving + 0.4, MessageKind::kGlobalSavePlan, all_planned);
    script.state(rank, moving + 0.5, RankState::kMoving, plan);
    const double ms = write_ms[static_cast<std::size_t>(rank)];
    const auto began = script.began(rank, moving + 0.6, "write_data", Phase::kWrite, plan, 1'000'000);
    const auto ended = script.ended(rank, moving + 0.6 + ms, "write_data", Phase::kWrite, began, ms);
    script.state(rank, moving + 0.7 + ms, RankState::kReported, ended);
    if (rank != 0)
      arrivals.emplace_back(moving + 1 + ms, rank, script.send(rank, 0, moving + 0.7 + ms, MessageKind::kWritten, ended));
  }
  // The coordinator handles the results in the order of arrival. Its own is taken to be the first.
  std::sort(arrivals.begin(), arrivals.end());
  double written = moving + 1;
  std::uint64_t last = all_planned;
  for (const auto& [time, rank, sent] : arrivals) {
    written = time;
    last = script.handle(0, rank, time, MessageKind::kWritten, sent);
  }
  script.state(0, written + 0.1, CoordinatorState::kFinishing, last);
  script.state(0, written + 2.1, CoordinatorState::kIdle, last);
  for (int rank = 0; rank < size; ++rank) {
    const auto told = rank == 0 ? last : script.pass(0, rank, written + 2.2, written + 2.5, MessageKind::kOutcome, last);
    script.outcome(rank, written + 2.6, true, told);
  }
}

}  // namespace cairn::testing
