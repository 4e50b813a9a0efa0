#include <cairn/tracing/trace_directory.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <cairn/base/error.hpp>
#include <cairn/base/process_name.hpp>

namespace cairn {
namespace {

namespace fs = std::filesystem;

// --- the files ---

bool begins_with(std::string_view text, std::string_view beginning) { return text.substr(0, beginning.size()) == beginning; }

std::vector<std::string> traces_in(const fs::path& directory) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end; entry.increment(failed))
    if (entry->path().extension() == ".trace") paths.push_back(entry->path().string());
  if (failed) throw system_error("list the traces in", directory.string(), failed.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Returns the latest report with traces. If not `with_traces`, a report.txt suffices: on a full
// disk a report has no traces.
std::optional<fs::path> latest_report(const fs::path& directory, bool with_traces = true) {
  std::optional<fs::path> latest;
  fs::file_time_type latest_time;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::error_code failed;
    if (!begins_with(entry.path().filename().string(), "failure-") || !entry.is_directory(failed)) continue;
    const auto time = entry.last_write_time(failed);
    // Before looking into the directory, which is slower.
    if (failed || (latest && time <= latest_time)) continue;
    if (with_traces ? traces_in(entry.path()).empty() : !fs::exists(entry.path() / "report.txt", failed)) continue;
    latest = entry.path();
    latest_time = time;
  }
  return latest;
}

// Reports carry no common number if one of them lacks the save id. Ranks write them within seconds
// of the end of the call.
constexpr std::chrono::seconds kReportsApart{60};  // of one failed call, at most

// Returns the job and checkpointer in the name of a report; "" if it has another form.
std::string key_of_report(const std::string& name) {
  constexpr std::size_t kKeyBytes = 32 + 1 + 8;  // incarnation and checkpointer, in hexadecimal
  // The length of "failure-cairn-", or of "failure-".
  const std::size_t begin = begins_with(name, "failure-cairn-") ? 14 : 8;
  return name.size() > begin + kKeyBytes ? name.substr(begin, kKeyBytes) : "";
}

bool is_without_save_id(const fs::path& report) { return report.filename().string().find("-call-") != std::string::npos; }

// Returns the traces in a report, and those of other ranks in a report that one of them wrote about
// the same call without knowing its save id.
std::vector<std::string> traces_of_report(const fs::path& report) {
  auto traces = traces_in(report);
  std::set<std::string> known;  // "rank-00003"
  const auto rank_of = [](const std::string& path) { return fs::path(path).filename().string().substr(0, 10); };
  for (const auto& trace : traces) known.insert(rank_of(trace));
  const std::string key = key_of_report(report.filename().string());
  std::error_code failed;
  const auto time = fs::last_write_time(report, failed);
  for (fs::directory_iterator entry(report.parent_path(), failed), end; !failed && entry != end; entry.increment(failed)) {
    const fs::path& other = entry->path();
    std::error_code gone;
    if (!begins_with(other.filename().string(), "failure-") || key.empty() || key_of_report(other.filename().string()) != key ||
        is_without_save_id(other) == is_without_save_id(report) || !entry->is_directory(gone))
      continue;
    const auto apart = fs::last_write_time(other, gone) - time;
    if (gone || apart > kReportsApart || apart < -kReportsApart) continue;
    try {
      for (const auto& trace : traces_in(other))
        if (known.insert(rank_of(trace)).second) traces.push_back(trace);
    } catch (const Error&) {  // may not be read
    }
  }
  return traces;
}

// Returns a place with traces: one directory inside `path`, or the directory `traces` beside it.
std::optional<std::string> traces_nearby(const fs::path& path) {
  std::error_code failed;
  // For the hint in an error. Checkpoints and traces often lie side by side.
  std::vector<fs::path> places{fs::weakly_canonical(path, failed).parent_path() / "traces"};
  for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed))
    places.push_back(entry->path());
  for (const fs::path& place : places) {
    try {
      if (fs::is_directory(place, failed) && (!traces_in(place).empty() || latest_report(place))) return place.string();
    } catch (const std::exception&) {  // no permission to read it
    }
  }
  return std::nullopt;
}

// Returns the place of the traces at `path` and their files. If it is the directory of a run,
// returns those of its latest report of a failed save, and those of other ranks in a report about
// the same call. If there are none, throws kNotFound, with a place nearby that has some. Throws
// file system errors.
std::pair<std::string, std::vector<std::string>> find_traces(const std::string& path) {
  if (!fs::exists(path)) throw Error(ErrorCode::kNotFound, "there is no " + path + " to read traces from");
  if (!fs::is_directory(path)) return {path, {path}};
  auto files = traces_in(path);
  if (!files.empty()) return {path, std::move(files)};
  if (const auto report = latest_report(path)) return {report->string(), traces_of_report(*report)};
  const auto nearby = traces_nearby(path);
  const auto report = latest_report(path, /*with_traces=*/false);
  throw Error(
      ErrorCode::kNotFound,
      path + " holds no traces (rank-*.trace)" +
          (report ? "; what failed is in " + (*report / "report.txt").string() : " and no reports of failed saves (failure-*)") +
          (nearby ? "; there are traces in " + *nearby : "; ranks write traces where CAIRN_TRACE names a directory"));
}

// --- the calls in them ---

constexpr std::size_t kCallsMax = 100'000;  // per checkpointer and rank; keeps the later calls, which matter more

// Not nested in CallFinder, because std::optional needs a complete type there.
struct FoundCall {
  TracedCall call;
  std::optional<Operation> operation;
  std::string checkpoint_id;
  bool only_cancelled = true;
};

// Finds the calls of one checkpointer on one rank while reading its events in order.
class CallFinder {
 public:
  void take(const ObservedEvent& event) {
    // Events before the first kCall belong to that call: other ranks may have called earlier.
    // The event of a call may be lost, so a later ticket begins a call as well.
    const bool is_of_later = event.call != 0 && current_ && current_->call.ticket != 0 && event.call > current_->call.ticket;
    const bool is_next = event.kind == EventKind::kCall && event.call == 0 && current_ && current_->call.was_called;
    if (is_of_later || is_next) close(event);
    if (!current_) {
      current_.emplace();
      current_->call.rank = event.rank;
      current_->call.first_id = next_first_ != 0 ? next_first_ : event.id;
      current_->call.begin = event.wall_time;
    }
    FoundCall& it = *current_;
    if (it.call.ticket == 0) it.call.ticket = event.call;
    if (event.call != 0 && event.call != it.call.ticket) return;  // of an earlier call; `read` finds it
    // Several threads record events, so ids are not strictly ascending in a file.
    it.call.last_id = std::max(it.call.last_id, event.id);
    if (!it.call.has_ended) it.call.end = event.wall_time;
    if (event.kind == EventKind::kCall) {
      it.call.was_called = true;
      it.call.number = event.number;
      it.call.begin = event.wall_time;
      if (const auto* operation = event.as<Operation>()) it.operation = *operation;
      it.checkpoint_id = event.text;
    }
    if (event.as<RankState>() != nullptr) {
      it.call.was_called = true;
      if (event.attempt != 0) it.call.attempt = event.attempt;
    }
    if (event.kind == EventKind::kFailure && !event.is(FailureKind::kCancelled)) it.only_cancelled = false;
    if (event.kind == EventKind::kOutcome) {
      it.call.was_called = true;
      it.call.has_ended = true;
      it.call.ok = event.ok;
      if (const auto* committed = event.as<Committed>()) it.call.committed = *committed;
      it.call.end = event.wall_time;
      if (event.attempt != 0) it.call.attempt = event.attempt;
      outcome_id_ = event.id;
    }
  }

  // Call it if events are missing between the last event and the next one.
  void pass_gap() {
    if (current_) put_away();
    next_first_ = 0;
  }

  std::vector<FoundCall> calls() && {
    if (current_) {
      current_->call.is_last = true;
      calls_.push_back(std::move(*current_));
    }
    return std::move(calls_);
  }

 private:
  void close(const ObservedEvent& event) {
    // The other ranks may have called before this rank, and told the coordinator on this rank.
    next_first_ = outcome_id_ != 0 ? outcome_id_ + 1 : event.id;
    current_->call.last_id = next_first_ - 1;
    put_away();
  }

  void put_away() {
    outcome_id_ = 0;
    calls_.push_back(std::move(*current_));
    current_.reset();
    // Half at once, because erasing from the front of a vector moves the rest.
    if (calls_.size() > kCallsMax) calls_.erase(calls_.begin(), calls_.begin() + kCallsMax / 2);
  }

  std::vector<FoundCall> calls_;
  std::optional<FoundCall> current_;
  std::uint64_t next_first_ = 0;
  std::uint64_t outcome_id_ = 0;  // of the current call
};

using AttemptKey = std::tuple<std::string, std::uint32_t, std::uint64_t, std::uint64_t>;  // job, checkpointer, counter, number

using Attempts = std::map<AttemptKey, TracedAttempt>;

// A rank that never received the counter belongs to the call of the same number, if there is one. A
// rank that only heard of the other ranks' call belongs to the call that was running.
TracedAttempt* of_the_others(Attempts& attempts, const AttemptKey& key, const TracedCall& call) {
  TracedAttempt* found = nullptr;
  for (auto& [other, attempt] : attempts) {
    if (std::get<0>(other) != std::get<0>(key) || std::get<1>(other) != std::get<1>(key) || attempt.calls.count(call.rank) != 0)
      continue;
    const bool same_number = std::any_of(attempt.calls.begin(), attempt.calls.end(),
                                         [&](const auto& entry) { return call.number != 0 && entry.second.number == call.number; });
    if (same_number) return &attempt;
    if (!call.was_called && attempt.begin() <= call.end) found = &attempt;
  }
  return found;
}

// Groups the calls of all ranks into attempts.
std::vector<TracedAttempt> attempts_of(std::vector<std::pair<AttemptKey, FoundCall>> calls) {
  // Calls without a counter come after all attempts with one, which they may belong to.
  std::stable_partition(calls.begin(), calls.end(), [](const auto& entry) { return entry.second.call.attempt != 0; });
  Attempts attempts;
  for (auto& [key, call] : calls) {
    const bool has_counter = call.call.attempt != 0;
    TracedAttempt* attempt = has_counter ? nullptr : of_the_others(attempts, key, call.call);
    if (attempt == nullptr && !has_counter && !call.call.was_called) continue;
    if (attempt == nullptr) {
      const auto [found, is_new] = attempts.try_emplace(key);
      attempt = &found->second;
      if (is_new) {
        std::tie(attempt->job, attempt->checkpointer, attempt->counter, std::ignore) = key;
        attempt->was_cancelled = true;
        if (attempt->counter != 0 && attempt->job.size() == 32) {
          char rest[40];
          // make_save_id needs the checkpointer's name, of which traces have only the hash.
          std::snprintf(rest, sizeof rest, "-%08x-%llu", static_cast<unsigned>(attempt->checkpointer),
                        static_cast<unsigned long long>(attempt->counter));
          attempt->save_id = "cairn-" + attempt->job + rest;
        }
      }
    }
    if (call.operation) attempt->operation = call.operation;
    if (!call.checkpoint_id.empty()) attempt->checkpoint_id = call.checkpoint_id;
    attempt->was_cancelled = attempt->was_cancelled && call.only_cancelled;
    attempt->calls.insert_or_assign(call.call.rank, std::move(call.call));
  }
  std::vector<TracedAttempt> list;
  for (auto& [key, attempt] : attempts) list.push_back(std::move(attempt));
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.begin() < b.begin(); });
  return list;
}

bool is_earlier(const TracedFile& a, const TracedFile& b) {
  const auto key = [](const TracedFile& file) {
    const TraceHeader& header = *file.header;  // each ring has only one part, so order rings by time
    return std::make_tuple(header.incarnation, header.rank, header.source, header.part, header.wall);
  };
  return key(a) < key(b);
}

// Returns `TracedAttempt::is_running`.
bool runs(const TracedAttempt& attempt, const TracedJob& job) {
  bool one_runs = false;
  for (const auto& [rank, call] : attempt.calls) {
    if (call.has_ended && !call.ok) return false;
    if (call.has_ended) continue;
    const std::optional<bool> now = job.writers.at(rank).is_running;
    if (!call.is_last || job.processes.count(rank) > 0 || now == false) return false;
    one_runs = one_runs || now.has_value();
  }
  return one_runs;
}

}  // namespace

WallTime TracedAttempt::begin() const {
  WallTime first = WallTime::max();
  for (const auto& [rank, call] : calls)
    if (call.was_called) first = std::min(first, call.begin);
  return first;
}

WallTime TracedAttempt::end() const {
  WallTime last = begin();
  for (const auto& [rank, call] : calls) last = std::max(last, call.end);
  return last;
}

Duration TracedAttempt::duration() const {
  Duration longest{0};
  for (const auto& [rank, call] : calls)
    if (call.was_called) longest = std::max(longest, call.end - call.begin);
  return longest;
}

bool TracedAttempt::has_failed() const {
  return std::any_of(calls.begin(), calls.end(), [](const auto& entry) { return entry.second.has_ended && !entry.second.ok; });
}

bool TracedAttempt::has_ended() const {
  return std::all_of(calls.begin(), calls.end(), [](const auto& entry) { return entry.second.has_ended; });
}

bool TracedAttempt::went_wrong() const { return has_failed() ? !was_cancelled : !has_ended() && !is_running; }

std::string TracedJob::describe(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  const auto writer = writers.find(rank);
  return writer == writers.end() ? name : name + " (" + process_name(writer->second.process, writer->second.host) + ")";
}

std::string TracedAttempt::operation_name() const { return operation ? to_string(*operation) : "call"; }

std::string TracedAttempt::describe() const {
  return operation_name() +
         (checkpoint_id.empty() ? std::string(" whose beginning is not in the traces") : " of '" + checkpoint_id + "'");
}

const ObservedEvent* Trace::find(int rank, std::uint64_t id) const {
  const auto found = events.find(rank);
  if (found == events.end()) return nullptr;
  const auto at = std::lower_bound(found->second.begin(), found->second.end(), id,
                                   [](const ObservedEvent& event, std::uint64_t wanted) { return event.id < wanted; });
  return at != found->second.end() && at->id == id ? &*at : nullptr;
}

// Two passes: this one finds the calls and keeps no events, so that traces of any length can be
// listed. `read` collects the events of one call.
TraceDirectory::TraceDirectory(const std::string& path) {
  std::vector<std::string> paths;
  std::tie(path_, paths) = find_traces(path);
  std::map<std::string, TracedJob> jobs;
  std::vector<TracedFile> readable;
  const auto ends = read_ends(path_);
  const std::string own_host = host_name();
  for (auto& name : paths) {
    TracedFile file;
    file.path = std::move(name);
    try {
      file.header = TraceFileReader(file.path).header();
      readable.push_back(std::move(file));
    } catch (const Error& error) {
      file.fault = error.what();
      files_.push_back(std::move(file));
    }
  }
  std::sort(readable.begin(), readable.end(), is_earlier);

  struct RankFiles {
    bool has_stream = false;
    std::uint64_t last_in_ring = 0;               // the id of the last event
    std::map<std::uint32_t, CallFinder> finders;  // by checkpointer
  };
  std::map<std::pair<std::string, int>, RankFiles> ranks;  // by job and rank
  const auto names = std::make_shared<TraceNames>();
  for (auto& file : readable) {
    const TraceHeader& header = *file.header;
    RankFiles& rank = ranks[{header.incarnation, header.rank}];
    // Streams sort before rings of the same rank, so that all of its streams are known here.
    const bool is_ring = header.source == TraceSource::kRing;
    rank.has_stream = rank.has_stream || !is_ring;
    // Rings are dumps of one buffer at different times, so they overlap. An event counts in the
    // first ring that has it.
    const std::uint64_t known = rank.last_in_ring;  // id of the last event in rings written before this one
    TracedJob& job = jobs.try_emplace(header.incarnation, TracedJob{header.incarnation, 0, header.wall, {}, {}, {}}).first->second;
    job.begin = std::min(job.begin, header.wall);
    job.world_size = std::max(job.world_size, header.world_size);
    TracedWriter& writer = job.writers[header.rank];
    writer.host = header.host;
    writer.process = header.process;
    if (!is_ring && header.host == own_host) writer.is_running = is_running(header.process, header.wall);
    if (const auto* const end = end_of_writer(ends, header)) job.processes[header.rank] = end->end;
    try {
      TraceFileReader reader(file.path, names);
      auto& sections = sections_[file.path];
      Section section;
      std::uint64_t section_begin = 0;
      std::size_t names_defined = 0;  // before the section
      ObservedEvent event;
      bool goes_on = false;  // the ring overlaps the one before it, so no events are missing in between
      while (reader.next(event)) {
        ++file.events;
        section.add(event);
        if (reader.bytes() - section_begin >= kSectionBytes) {
          section.end = section_begin = reader.bytes();
          section.defines_names = reader.names_defined() != names_defined;
          names_defined = reader.names_defined();
          sections.push_back(std::exchange(section, {}));
        }
        if (is_ring && rank.has_stream) continue;  // the stream contains its events
        if (is_ring) {
          goes_on = goes_on || event.id == known;
          if (event.id <= known) continue;
          if (known != 0 && rank.last_in_ring == known && event.id != known + 1 && !goes_on)
            for (auto& [checkpointer, finder] : rank.finders) finder.pass_gap();
          rank.last_in_ring = std::max(rank.last_in_ring, event.id);
        }
        // Links and restarts belong to no checkpointer. `read` adds them to each attempt of their
        // time.
        if (event.checkpointer != 0) rank.finders[event.checkpointer].take(event);
      }
      file.damage = reader.damage();
      file.bytes_cut = reader.bytes_cut();
    } catch (const Error& error) {
      file.fault = error.what();
    }
    files_.push_back(std::move(file));
  }

  std::vector<std::pair<AttemptKey, FoundCall>> calls;
  for (auto& [whose, rank] : ranks)
    for (auto& [checkpointer, finder] : rank.finders)
      for (FoundCall& found : std::move(finder).calls()) {
        const std::uint64_t counter = found.call.attempt, number = counter == 0 ? found.call.number : 0;
        calls.emplace_back(AttemptKey{whose.first, checkpointer, counter, number}, std::move(found));
      }
  attempts_ = attempts_of(std::move(calls));
  for (TracedAttempt& attempt : attempts_) attempt.is_running = runs(attempt, jobs[attempt.job]);
  for (auto& [incarnation, job] : jobs) {
    for (int rank = 0; rank < job.world_size; ++rank)
      if (job.writers.count(rank) == 0) job.missing.push_back(rank);
    jobs_.push_back(std::move(job));
  }
  std::sort(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

void TraceDirectory::Section::add(const ObservedEvent& event) {
  first_id = std::min(first_id, event.id);
  last_id = std::max(last_id, event.id);
  if (event.call == 0) return;
  first_call = std::min(first_call, event.call);
  last_call = std::max(last_call, event.call);
}

bool TraceDirectory::Section::may_hold(const TracedCall& call) const {
  return (first_id <= call.last_id && last_id >= call.first_id) || (first_call <= call.ticket && call.ticket <= last_call);
}

const TracedAttempt* TraceDirectory::most_interesting(const Fits& fits) const {
  const TracedAttempt* best = nullptr;
  for (const auto& attempt : attempts_)
    // Attempts are in the order of their start: the last one that went wrong wins, or else the last
    // one.
    if (fits(attempt) && (best == nullptr || attempt.went_wrong() || !best->went_wrong())) best = &attempt;
  const auto moves_data = [](const TracedAttempt& attempt) {
    return attempt.operation == Operation::kSave || attempt.operation == Operation::kLoad;
  };
  if (best == nullptr || !best->went_wrong() || moves_data(*best)) return best;
  // An agreement fails for the reason for which a save beside it fails, and is not what people ask
  // for.
  for (const auto& attempt : attempts_)
    if (moves_data(attempt) && attempt.job == best->job && attempt.went_wrong() && attempt.end() >= best->begin() && fits(attempt))
      return &attempt;
  return best;
}

Trace TraceDirectory::read(const TracedAttempt& attempt, std::size_t events_max) const {
  Trace trace;
  trace.attempt = attempt;
  trace.names = std::make_shared<TraceNames>();
  for (const auto& job : jobs_)
    if (job.incarnation == attempt.job) trace.job = job;
  // An equal share, so that one rank with many events does not displace the others.
  const std::size_t share = std::max<std::size_t>(1, events_max / std::max<std::size_t>(1, attempt.calls.size()));
  for (const auto& file : files_) {
    if (!file.header || !file.fault.empty() || file.header->incarnation != attempt.job) continue;
    const auto call = attempt.calls.find(file.header->rank);
    if (call == attempt.calls.end()) continue;
    try {
      TraceFileReader reader(file.path, trace.names);
      auto& events = trace.events[file.header->rank];
      ObservedEvent event;
      bool is_full = false;
      // Adds the events up to an offset.
      const auto add = [&](std::uint64_t end) {
        while (!is_full && reader.bytes() < end && reader.next(event)) {
          // Events of links and of other ranks' messages name no call.
          const bool names_call = event.call != 0 && call->second.ticket != 0;
          if (names_call && event.call != call->second.ticket) continue;
          if (!names_call && (event.id < call->second.first_id || event.id > call->second.last_id)) continue;
          if (event.checkpointer != 0 && event.checkpointer != attempt.checkpointer) continue;
          if (event.attempt != 0 && attempt.counter != 0 && event.attempt != attempt.counter) continue;
          if (events.size() >= share) {
            trace.truncated = is_full = true;
            return;
          }
          // The reader's text is valid only until its next event.
          event.text = trace.names->intern(event.text);
          events.push_back(event);
        }
      };
      const auto sections = sections_.find(file.path);
      // A ring that was written anew since has other sections.
      if (sections != sections_.end() && reader.header().wall == file.header->wall)
        for (const Section& section : sections->second) {
          if (section.defines_names || section.may_hold(call->second))
            add(section.end);
          else
            reader.skip_to(section.end);
        }
      add(UINT64_MAX);  // the rest has no section: it is short, or was written since
    } catch (const Error& error) {
      trace.unread.push_back(error.what());
    }
  }
  for (auto& [rank, events] : trace.events) {
    std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    // A stream and a ring of the same rank contain the same events.
    events.erase(std::unique(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.id == b.id; }),
                 events.end());
  }
  return trace;
}

}  // namespace cairn
