// `cairn trace export --to perfetto`: writes JSON for ui.perfetto.dev and chrome://tracing. One
// process per rank, one track per actor, one arrow per message between ranks. The format: "Trace
// Event Format", Google, 2016.
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
enum Track : int { kRankStates = 1, kCoordinatorStates, kLinks, kPlannerHooks, kStorageHooks, kOtherHooks, kTracks };
constexpr const char* kTrackNames[] = {"",        "rank",    "coordinator",        "messages between ranks",
                                       "planner", "storage", "hooks beside others"};

class Exporter {
 public:
  explicit Exporter(const OpenedTrace& opened)
      : opened_(opened), diagnosis_(diagnose(opened.trace, opened.messages, opened.clocks)) {
    for (const auto& [rank, events] : opened.trace.events)
      if (!events.empty()) end_ = std::max(end_, opened.clocks.at(events.back()));
  }

  Json events() {
    for (const auto& [rank, of_rank] : opened_.trace.events) {
      name(rank);
      states<RankState>(rank, of_rank, kRankStates);
      states<CoordinatorState>(rank, of_rank, kCoordinatorStates);
      hooks(of_rank);
    }
    links();
    for (const auto& failure : diagnosis_.failures)
      add({{"ph", "i"},
           {"s", "p"},
           {"pid", failure.rank},
           {"tid", static_cast<int>(kRankStates)},
           {"ts", microseconds(failure.last_sign.value_or(end_))},
           {"name", fmt::format("rank {} {}", failure.rank, kind_text(failure))},
           {"args", {{"phase", text_of(failure.phase)}, {"code", text_of(failure.code)}, {"text", failure.text}}}});
    return std::move(events_);
  }

 private:
  double microseconds(WallTime time) const { return std::chrono::duration<double, std::micro>(time - opened_.begin).count(); }

  void add(Json event) { events_.push_back(std::move(event)); }

  void slice(int rank, int track, std::string_view what, WallTime begin, WallTime end, Json arguments) {
    add({{"ph", "X"},
         {"pid", rank},
         {"tid", track},
         {"ts", microseconds(begin)},
         {"dur", std::max(0.0, microseconds(end) - microseconds(begin))},
         {"name", what},
         {"args", std::move(arguments)}});
  }

  void name(int rank) {
    const auto host = opened_.trace.job.hosts.find(rank);
    add({{"ph", "M"},
         {"pid", rank},
         {"name", "process_name"},
         {"args",
          {{"name", fmt::format("rank {}{}{}", rank, rank == diagnosis_.coordinator ? ", coordinates" : "",
                                host == opened_.trace.job.hosts.end() ? "" : " on " + host->second)}}}});
    add({{"ph", "M"}, {"pid", rank}, {"name", "process_sort_index"}, {"args", {{"sort_index", rank}}}});
    for (int track = kRankStates; track < kTracks; ++track) {
      add({{"ph", "M"}, {"pid", rank}, {"tid", track}, {"name", "thread_name"}, {"args", {{"name", kTrackNames[track]}}}});
      add({{"ph", "M"}, {"pid", rank}, {"tid", track}, {"name", "thread_sort_index"}, {"args", {{"sort_index", track}}}});
    }
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
    end_at(end_);
  }

  void hooks(const std::vector<ObservedEvent>& events) {
    std::map<int, WallTime> busy_until;
    struct Hook {
      const ObservedEvent* event;
      WallTime begin;
      WallTime end;
    };
    std::vector<Hook> hooks;
    for (const auto* event : hook_events(events))
      hooks.push_back(
          {event, opened_.clocks.begin_of(*event), event->kind == EventKind::kBegan ? end_ : opened_.clocks.at(*event)});
    std::sort(hooks.begin(), hooks.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (const auto& hook : hooks) {
      int track = hook.event->actor == Actor::kPlanner ? kPlannerHooks : kStorageHooks;
      const auto busy = busy_until.find(track);
      if (busy != busy_until.end() && hook.begin < busy->second) track = kOtherHooks;
      busy_until[track] = hook.end;
      Json arguments = to_json(opened_, *hook.event);
      if (hook.event->kind == EventKind::kBegan) arguments["ended"] = false;
      slice(hook.event->rank, track, hook.event->name, hook.begin, hook.end, std::move(arguments));
    }
  }

  // Draws messages. Each gets one microsecond, or less if the next one is closer, so that its arrow
  // has a slice to attach to.
  void links() {
    struct End {
      WallTime time;
      const ObservedEvent* event;
      std::uint64_t flow;  // 0: no arrow
    };
    std::map<int, std::vector<End>> ends;
    std::uint64_t flow = 0;
    for (const auto& message : opened_.messages) {
      const std::uint64_t id = message.sent != nullptr && message.handled != nullptr ? ++flow : 0;
      if (message.sent != nullptr) ends[message.from].push_back({opened_.clocks.at(*message.sent), message.sent, id});
      if (message.handled != nullptr) ends[message.to].push_back({opened_.clocks.at(*message.handled), message.handled, id});
    }
    for (auto& [rank, of_rank] : ends) {
      std::sort(of_rank.begin(), of_rank.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
      for (std::size_t i = 0; i < of_rank.size(); ++i) {
        const auto& [time, event, id] = of_rank[i];
        WallTime until = time + std::chrono::microseconds(1);
        if (i + 1 < of_rank.size()) until = std::min(until, of_rank[i + 1].time);
        const bool is_sent = event->kind == EventKind::kSent;
        Json arguments = to_json(opened_, *event);
        if (id == 0) arguments["other_end"] = "not in the traces";
        slice(rank, kLinks, fmt::format("{} {} {}", name_of(*event), is_sent ? "to" : "from", event->peer), time, until,
              std::move(arguments));
        if (id == 0) continue;
        Json arrow{{"ph", is_sent ? "s" : "f"}, {"pid", rank}, {"tid", static_cast<int>(kLinks)},
                   {"ts", microseconds(time)},  {"id", id},    {"cat", "message"},
                   {"name", name_of(*event)}};
        if (!is_sent) arrow["bp"] = "e";
        add(std::move(arrow));
      }
    }
  }

  const OpenedTrace& opened_;
  const Diagnosis diagnosis_;
  WallTime end_;
  Json events_ = Json::array();
};

}  // namespace

std::string trace_events_json(const OpenedTrace& opened) {
  const Json json{
      {"traceEvents", Exporter(opened).events()}, {"displayTimeUnit", "ms"}, {"otherData", to_json(opened.trace.attempt)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

int trace_export(const TraceChoice& choice, const std::string& format, const std::string& path) {
  const OpenedTrace opened(choice);
  const std::string text = format == "html" ? trace_page(opened) : trace_events_json(opened);
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
