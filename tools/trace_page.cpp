// `cairn trace export --to html`: writes one page with the saves and loads of a job. The scripts in
// html/, which CMake embeds in this program, draw it. The page makes no network requests.
//
// The events of a rank are stored as columns of numbers, one number per event: as base64 of
// variable-length integers with seven bits per byte, lowest first. That takes a third of the size
// of JSON, and is decoded without one object per event. Names and texts are replaced by numbers.
// html/model.js decodes it.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include <openssl/evp.h>

#include <cairn/tools/trace.hpp>
#include <cairn/tracing/trace_text.hpp>

namespace cairn::tools {
namespace {

constexpr std::uint64_t kFailedFlag = 1, kWaitedFlag = 2, kLostFlag = 4;  // as in html/model.js

class PageColumn {
 public:
  void add(std::uint64_t value) {
    is_needed_ = is_needed_ || value != 0;
    for (; value >= 128; value >>= 7) bytes_.push_back(static_cast<char>(value | 128));
    bytes_.push_back(static_cast<char>(value));
  }
  // Zigzag encoding, so that small numbers of either sign stay short.
  void add_signed(std::int64_t value) { add((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63)); }

  bool is_needed() const { return is_needed_; }
  std::string base64() const {
    std::string text((bytes_.size() + 2) / 3 * 4 + 1, '\0');
    ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), reinterpret_cast<const unsigned char*>(bytes_.data()),
                      static_cast<int>(bytes_.size()));
    text.pop_back();  // the 0 that OpenSSL adds
    return text;
  }

 private:
  std::string bytes_;
  bool is_needed_ = false;
};

// Numbers distinct texts; 0 means no text.
class NumberedTexts {
 public:
  std::uint64_t number(std::string_view text) {
    const auto [found, is_new] = numbers_.try_emplace(std::string(text), texts_.size());
    if (is_new) texts_.push_back(found->first);
    return found->second;
  }
  const Json& all() const { return texts_; }

 private:
  std::unordered_map<std::string, std::uint64_t> numbers_{{"", 0}};
  Json texts_ = Json::array({""});
};

class PageModel {
 public:
  explicit PageModel(const OpenedTrace& opened) : opened_(opened), diagnosis_(opened.diagnosis) {
    for (const auto& [rank, events] : opened.trace.events) {
      first_[rank] = count_;
      count_ += static_cast<std::int64_t>(events.size());
    }
    for (const auto& message : lost_messages(opened.trace, opened.messages, opened.clocks)) lost_.insert(message.sent);
  }

  Json json() {
    Json json = tools::to_json(opened_.trace.attempt);
    json["title"] = opened_.trace.attempt.describe();
    json["seconds"] = in_seconds(diagnosis_.duration);
    json["summary"] = summary_lines(opened_);
    json["end"] = to_string(diagnosis_.end);
    json["begin_time"] = time_of_day(diagnosis_.begin);
    json["begin_seconds_of_day"] = in_seconds(diagnosis_.begin.time_since_epoch() % std::chrono::hours(24));
    json["coordinator"] = diagnosis_.coordinator;
    json["world_size"] = opened_.trace.job.world_size;
    json["truncated"] = opened_.trace.truncated;
    json["clock_error_seconds"] = in_seconds(opened_.clocks.error_max());
    json["phases"] = phases();
    if (const auto& step = diagnosis_.longest_step; step && diagnosis_.failures.empty())
      json["longest"] = {
          {"rank", step->rank}, {"what", step->what}, {"begin", seconds(step->begin)}, {"seconds", in_seconds(step->duration)}};
    json["failures"] = failures();
    json["end_event"] = place_of(last_outcome(opened_.trace, opened_.clocks));
    json["ranks"] = ranks();
    json["names"] = names_.all();
    json["texts"] = texts_.all();
    return json;
  }

 private:
  // Returns the index of an event among all events of the page; -1 for null.
  std::int64_t place_of(const ObservedEvent* event) const {
    if (event == nullptr) return -1;
    return first_.at(event->rank) + (event - opened_.trace.events.at(event->rank).data());
  }
  double seconds(WallTime time) const { return opened_.seconds(time); }

  Json phases() const {
    Json list = tools::to_json(diagnosis_.phases);
    for (std::size_t i = 0; i < list.size(); ++i) list[i]["begin"] = seconds(diagnosis_.phases[i].begin);
    return list;
  }

  // Returns the failures. `event`: where the page shows it. `at`: when it happened. `told`: when
  // the first rank learned of it, null if none did.
  Json failures() const {
    const auto explanations = explain(opened_.trace, opened_.clocks, diagnosis_);
    Json list = Json::array();
    for (const auto& failure : diagnosis_.failures) {
      const ObservedEvent* told = nullptr;
      for (const auto& [rank, events] : opened_.trace.events)
        for (const auto& event : events) {
          const bool is_it = event.kind == EventKind::kFailure && (event.peer < 0 ? rank : event.peer) == failure.rank;
          if (is_it && (told == nullptr || opened_.clocks.at(event) < opened_.clocks.at(*told))) told = &event;
        }
      const ObservedEvent* shown = told;
      for (const auto& explanation : explanations)
        if (explanation.failure == &failure && !explanation.chain.empty()) shown = explanation.chain.back().event;
      // If a hook has not ended, the failure did not happen when the hook began.
      const bool is_open = shown != nullptr && shown->kind == EventKind::kBegan;
      const WallTime at = shown == nullptr               ? diagnosis_.begin
                          : is_open && failure.last_sign ? *failure.last_sign
                                                         : opened_.clocks.at(*shown);
      list.push_back({{"rank", failure.rank},
                      {"kind", kind_text(failure)},
                      {"phase", text_of(failure.phase)},
                      {"code", text_of(failure.code)},
                      {"gone", failure.kind == FailureKind::kLost || failure.kind == FailureKind::kSilent},
                      {"event", place_of(shown)},
                      {"at", seconds(at)},
                      {"told", told == nullptr ? Json() : Json(seconds(opened_.clocks.at(*told)))}});
    }
    return list;
  }

  // Returns all ranks, including those without a trace, because the page shows that they are
  // missing.
  Json ranks() {
    const TracedJob& job = opened_.trace.job;
    std::map<int, Json> by_rank;
    for (const int rank : job.missing)
      by_rank[rank] = {{"rank", rank}, {"missing", true}, {"events", 0}, {"columns", Json::object()}};
    for (const auto& [rank, events] : opened_.trace.events)
      by_rank[rank] = {{"rank", rank}, {"missing", false}, {"events", events.size()}, {"columns", columns(rank, events)}};
    Json list = Json::array();
    for (auto& [rank, json] : by_rank) {
      const auto writer = job.writers.find(rank);
      json["host"] = writer == job.writers.end() ? "" : writer->second.host;
      json["process"] = writer == job.writers.end() ? 0 : writer->second.process;
      list.push_back(std::move(json));
    }
    return list;
  }

  // Adds the machine, as in html/model.js, and its state; for other events of the kind, what is
  // said of them.
  void add_state(const ObservedEvent& event, std::map<std::string, PageColumn>& columns) {
    std::uint64_t machine = 0, entered = 0;
    const auto enter = [&](std::uint64_t of, const auto* state) {
      if (state == nullptr) return;
      machine = of;
      entered = static_cast<std::uint64_t>(*state);
    };
    enter(1, event.as<RankState>());
    enter(2, event.as<CoordinatorState>());
    enter(3, event.as<SuccessionState>());
    columns["machine"].add(machine);
    columns["state"].add(entered);
    columns["said"].add(event.kind == EventKind::kState && machine == 0 ? names_.number(describe_state(event)) : 0);
  }

  Json columns(int rank, const std::vector<ObservedEvent>& events) {
    std::map<std::string, PageColumn> columns;
    std::uint64_t id = 0;
    std::int64_t time = 0;
    std::int64_t place = first_.at(rank);
    for (const auto& event : events) {
      const std::int64_t now =
          std::chrono::duration_cast<std::chrono::nanoseconds>(opened_.clocks.at(event) - diagnosis_.begin).count();
      const ChainLink cause = cause_of(opened_.trace, event);
      columns["id"].add(event.id - std::exchange(id, event.id));
      columns["time"].add_signed(now - std::exchange(time, now));
      columns["kind"].add(static_cast<std::uint64_t>(event.kind));
      add_state(event, columns);
      columns["actor"].add(names_.number(to_string(event.actor)));
      columns["name"].add(names_.number(name_of(event)));
      const auto* const committed = event.as<Committed>();
      columns["detail"].add(names_.number(committed != nullptr ? to_string(*committed) : text_of(event.code)));
      columns["phase"].add(names_.number(text_of(event.phase)));
      columns["text"].add(texts_.number(event.text));
      columns["peer"].add(static_cast<std::uint64_t>(std::max(-1, event.peer)) + 1);
      columns["cause"].add_signed(cause.event == nullptr ? 0 : place - place_of(cause.event));
      columns["flags"].add((event.ok ? 0 : kFailedFlag) | (cause.waited ? kWaitedFlag : 0) |
                           (lost_.count(&event) != 0 ? kLostFlag : 0));
      columns["duration"].add(static_cast<std::uint64_t>(std::max<std::int64_t>(0, event.duration.count())));
      columns["queued"].add(static_cast<std::uint64_t>(std::max<std::int64_t>(0, event.queued.count())));
      columns["bytes"].add(event.bytes);
      columns["number"].add(event.number);
      ++place;
    }
    Json json = Json::object();
    for (const auto& [name, column] : columns)
      if (column.is_needed()) json[name] = column.base64();
    return json;
  }

  const OpenedTrace& opened_;
  const Diagnosis& diagnosis_;
  std::map<int, std::int64_t> first_;  // index of each rank's first event
  std::int64_t count_ = 0;
  std::set<const ObservedEvent*> lost_;
  NumberedTexts names_;
  NumberedTexts texts_;
};

// The names of the values of an enumeration, by their numbers.
template <class Enum, class Name>
Json names_of(Name name) {
  Json names = Json::array({""});
  for (int number = 1; number <= static_cast<int>(kLastOf<Enum>); ++number) names.push_back(name(static_cast<Enum>(number)));
  return names;
}

// Escapes the characters that could end a script element, or begin another element or a comment.
std::string escaped(const std::string& text, const char* less_than, const char* ampersand) {
  std::string result;
  result.reserve(text.size());
  for (const char letter : text) {
    if (letter == '<')
      result += less_than;
    else if (letter == '&')
      result += ampersand;
    else
      result += letter;
  }
  return result;
}

}  // namespace

std::string trace_page(const JobToExport& job) {
  Json attempts = Json::array();
  std::string data, summary;
  const auto add_data = [&](const std::string& id, const Json& json) {
    data += "<script type=\"application/json\" id=\"" + id + "\">" +
            escaped(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\\u003c", "&") + "</script>";
  };
  for (const auto& listed : job.attempts) {
    Json entry = to_json(listed);
    entry["title"] = listed.attempt->describe();
    entry["first"] = listed.attempt == job.first;
    entry["exported"] = listed.is_exported;
    if (listed.is_exported) {
      const Json json = PageModel(OpenedTrace(job.directory, *listed.attempt)).json();
      if (listed.attempt == job.first)
        for (const auto& line : json["summary"]) summary += escaped(line.get<std::string>(), "&lt;", "&amp;") + '\n';
      add_data("attempt_" + std::to_string(attempts.size()), json);
    }
    attempts.push_back(std::move(entry));
  }
  const auto text = [](auto state) { return to_string(state); };
  add_data(
      "job",
      {{"attempts", std::move(attempts)},
       {"kinds", names_of<EventKind>(verb_of)},
       {"states", {Json::array(), names_of<RankState>(text), names_of<CoordinatorState>(text), names_of<SuccessionState>(text)}}});
  const auto placed = [](std::string_view& rest, std::string_view mark) {
    const std::size_t at = rest.find(mark);
    const std::string before(rest.substr(0, at));
    rest.remove_prefix(at + mark.size());
    return before;
  };
  std::string_view rest = kTracePageTemplate;
  std::string page = placed(rest, "<!--summary-->") + summary;
  page += placed(rest, "<!--data-->") + data;
  return page.append(rest);
}

}  // namespace cairn::tools
