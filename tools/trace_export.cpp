// `cairn trace export --to perfetto`: writes JSON for ui.perfetto.dev and chrome://tracing. One
// process per rank, one track per actor, one arrow per message between ranks. The format: "Trace
// Event Format", Google, 2016.
//
// Times are on the wall clock. A double cannot hold nanoseconds since 1970, so they are relative to
// `baseTimeNanoseconds`, the beginning of a quarter of a year of 7,889,238 s, as in the traces of
// PyTorch's profiler.
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <map>

#include <fmt/format.h>

#include <cairn/tools/trace.hpp>

namespace cairn::tools {
namespace {

// The tracks of a rank, in display order. Slices on a track never overlap, except nested handlers.
enum Track : int { kCalls = 1, kRankStates, kCoordinatorStates, kLinks, kPlannerHooks, kStorageHooks, kOtherHooks, kTracks };
constexpr const char* kTrackNames[] = {"",        "saves and loads",    "rank", "coordinator", "messages between ranks", "planner",
                                       "storage", "hooks beside others"};
constexpr const char* kCategories[] = {"", "call", "state", "state", "message", "hook", "hook", "hook"};

// The events of all attempts so far.
struct Exported {
  explicit Exported(WallTime first) : base(first - first.time_since_epoch() % std::chrono::seconds(7'889'238)) {}

  const WallTime base;
  Json events = Json::array();
  std::uint64_t arrows = 0;
  std::map<std::uint32_t, int> checkpointers;  // their places; calls of several may overlap
  // When the last slice of each track ended, by rank and track. Clocks are aligned anew for each
  // attempt, so slices of the next one may begin earlier by the error of that.
  std::map<std::pair<int, int>, WallTime> free;
};

class Exporter {
 public:
  Exporter(const OpenedTrace& opened, Exported& exported) : opened_(opened), exported_(exported) {
    const int place = static_cast<int>(exported.checkpointers.size());
    first_track_ = kTracks * exported.checkpointers.try_emplace(opened.trace.attempt.checkpointer, place).first->second;
    for (const auto& [rank, events] : opened.trace.events)
      if (!events.empty()) end_ = std::max(end_, opened.clocks.at(events.back()));
  }

  void add_events() {
    for (const auto& [rank, of_rank] : opened_.trace.events) {
      if (exported_.free.count({rank, first_track_ + kCalls}) == 0) name(rank);
      call(rank, of_rank);
      states<RankState>(rank, of_rank, kRankStates);
      states<CoordinatorState>(rank, of_rank, kCoordinatorStates);
      hooks(of_rank);
    }
    links();
    for (const auto& failure : opened_.diagnosis.failures)
      add({{"ph", "i"},
           {"s", "p"},
           {"pid", failure.rank},
           {"tid", first_track_ + kRankStates},
           {"ts", microseconds(failure.last_sign.value_or(end_))},
           {"cat", "failure"},
           {"name", fmt::format("rank {} {}", failure.rank, kind_text(failure))},
           {"args", {{"phase", text_of(failure.phase)}, {"code", text_of(failure.code)}, {"text", failure.text}}}});
    for (const auto& [track, end] : ends_) exported_.free[track] = end;
  }

 private:
  double microseconds(WallTime time) const { return std::chrono::duration<double, std::micro>(time - exported_.base).count(); }

  void add(Json event) { exported_.events.push_back(std::move(event)); }

  WallTime on_track(int rank, int track, WallTime time) const {
    const auto free = exported_.free.find({rank, first_track_ + track});
    return free == exported_.free.end() ? time : std::max(time, free->second);
  }

  void slice(int rank, int track, std::string_view what, WallTime begin, WallTime end, Json arguments) {
    begin = on_track(rank, track, begin);
    end = std::max(begin, end);
    WallTime& last = ends_[{rank, first_track_ + track}];
    last = std::max(last, end);
    add({{"ph", "X"},
         {"pid", rank},
         {"tid", first_track_ + track},
         {"cat", kCategories[track]},
         {"ts", microseconds(begin)},
         {"dur", microseconds(end) - microseconds(begin)},
         {"name", what},
         {"args", std::move(arguments)}});
  }

  void name(int rank) {
    add({{"ph", "M"},
         {"pid", rank},
         {"name", "process_name"},
         {"args", {{"name", opened_.trace.job.describe(rank) + (rank == opened_.diagnosis.coordinator ? ", coordinates" : "")}}}});
    add({{"ph", "M"}, {"pid", rank}, {"name", "process_sort_index"}, {"args", {{"sort_index", rank}}}});
    for (int track = kCalls; track < kTracks; ++track) {
      const int id = first_track_ + track;
      add({{"ph", "M"}, {"pid", rank}, {"tid", id}, {"name", "thread_name"}, {"args", {{"name", kTrackNames[track]}}}});
      add({{"ph", "M"}, {"pid", rank}, {"tid", id}, {"name", "thread_sort_index"}, {"args", {{"sort_index", id}}}});
    }
  }

  void call(int rank, const std::vector<ObservedEvent>& events) {
    const ObservedEvent* begin = nullptr;
    const ObservedEvent* end = nullptr;
    for (const auto& event : events) {
      if (event.kind == EventKind::kCall && begin == nullptr) begin = &event;
      if (event.kind == EventKind::kOutcome) end = &event;
    }
    if (begin == nullptr) return;
    slice(rank, kCalls, opened_.trace.attempt.describe(), opened_.clocks.at(*begin),
          end == nullptr ? end_ : opened_.clocks.at(*end), tools::to_json(opened_.trace.attempt));
  }

  template <class State>
  void states(int rank, const std::vector<ObservedEvent>& events, int track) {
    const ObservedEvent* since = nullptr;
    const auto end_at = [&](WallTime end) {
      if (since != nullptr)
        slice(rank, track, to_string(*since->as<State>()), opened_.clocks.at(*since), end, to_json(opened_, *since));
    };
    for (const auto& event : events) {
      if (event.as<State>() == nullptr) continue;
      end_at(opened_.clocks.at(event));
      since = event.is(State::kIdle) ? nullptr : &event;
    }
    const auto& call = opened_.trace.attempt.calls.find(rank);
    const bool has_ended = call != opened_.trace.attempt.calls.end() && call->second.has_ended;
    end_at(has_ended ? opened_.clocks.at(events.back()) : end_);
  }

  void hooks(const std::vector<ObservedEvent>& events) {
    std::map<int, WallTime> busy_until;
    auto hooks = hook_events(events);
    std::sort(hooks.begin(), hooks.end(),
              [&](const auto* a, const auto* b) { return opened_.clocks.begin_of(*a) < opened_.clocks.begin_of(*b); });
    for (const auto* hook : hooks) {
      const bool has_ended = hook->kind != EventKind::kBegan;
      const WallTime begin = opened_.clocks.begin_of(*hook), end = has_ended ? opened_.clocks.at(*hook) : end_;
      int track = hook->actor == Actor::kPlanner ? kPlannerHooks : kStorageHooks;
      const auto busy = busy_until.find(track);
      if (busy != busy_until.end() && begin < busy->second) track = kOtherHooks;
      busy_until[track] = end;
      Json arguments = to_json(opened_, *hook);
      if (!has_ended) arguments["ended"] = false;
      slice(hook->rank, track, hook->name, begin, end, std::move(arguments));
    }
  }

  // Draws messages. Each gets one microsecond, or less if the next one is closer, so that its arrow
  // has a slice to attach to.
  void links() {
    struct End {
      WallTime time;
      const ObservedEvent* event;
      std::uint64_t flow;  // 0: no arrow
      bool has_both;
    };
    std::map<int, std::vector<End>> ends;
    for (const auto& message : opened_.messages) {
      const bool has_both = message.sent != nullptr && message.handled != nullptr;
      WallTime sent, handled;
      if (message.sent != nullptr) sent = on_track(message.from, kLinks, opened_.clocks.at(*message.sent));
      if (message.handled != nullptr) handled = on_track(message.to, kLinks, opened_.clocks.at(*message.handled));
      const std::uint64_t id = has_both && sent <= handled ? ++exported_.arrows : 0;
      if (message.sent != nullptr) ends[message.from].push_back({sent, message.sent, id, has_both});
      if (message.handled != nullptr) ends[message.to].push_back({handled, message.handled, id, has_both});
    }
    for (auto& [rank, of_rank] : ends) {
      std::sort(of_rank.begin(), of_rank.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
      for (std::size_t i = 0; i < of_rank.size(); ++i) {
        const auto& [time, event, id, has_both] = of_rank[i];
        WallTime until = time + std::chrono::microseconds(1);
        if (i + 1 < of_rank.size()) until = std::min(until, of_rank[i + 1].time);
        const bool is_sent = event->kind == EventKind::kSent;
        Json arguments = to_json(opened_, *event);
        if (!has_both) arguments["other_end"] = "not in the traces";
        slice(rank, kLinks, fmt::format("{} {} {}", name_of(*event), is_sent ? "to" : "from", event->peer), time, until,
              std::move(arguments));
        if (id == 0) continue;
        Json arrow{{"ph", is_sent ? "s" : "f"}, {"pid", rank}, {"tid", first_track_ + kLinks},
                   {"ts", microseconds(time)},  {"id", id},    {"cat", "message"},
                   {"name", name_of(*event)}};
        if (!is_sent) arrow["bp"] = "e";
        add(std::move(arrow));
      }
    }
  }

  const OpenedTrace& opened_;
  Exported& exported_;
  int first_track_ = 0;
  std::map<std::pair<int, int>, WallTime> ends_;  // of the slices so far, by rank and track
  WallTime end_;
};

}  // namespace

std::string trace_events_json(const JobToExport& job) {
  Exported exported(job.attempts.front().attempt->begin());
  Json attempts = Json::array();
  for (const auto& listed : job.attempts) {
    attempts.push_back(to_json(listed));
    attempts.back()["exported"] = listed.is_exported;
    if (listed.is_exported) Exporter(OpenedTrace(job.directory, *listed.attempt), exported).add_events();
  }
  const Json json{{"baseTimeNanoseconds", std::chrono::nanoseconds(exported.base.time_since_epoch()).count()},
                  {"traceEvents", std::move(exported.events)},
                  {"displayTimeUnit", "ms"},
                  {"otherData", {{"attempts", std::move(attempts)}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

int trace_export(const TraceOptions& options) {
  const JobToExport job(options);
  const auto left_out = std::count_if(job.attempts.begin(), job.attempts.end(), [](const auto& it) { return !it.is_exported; });
  if (left_out != 0)
    std::cerr << fmt::format("the events of {} of {} saves and loads are too many to export: --attempt chooses one\n", left_out,
                             job.attempts.size());
  const std::string& path = options.output;
  const std::string text = options.format == "html" ? trace_page(job) : trace_events_json(job);
  if (path.empty() || path == "-") {
    std::cout << text;
    return kFine;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw system_error("write the exported trace", path, errno);
  return kFine;
}

}  // namespace cairn::tools
