// The summary of a large job's traces: 128 ranks that saved once a second for ten minutes, 2 GiB.
//
// Prints one JSON object per line: {name, value, unit, limit, ratio, goal, met}. The limit of the
// time is that of reading the same files without looking at them. `--quick`: an eighth of the
// saves.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cairn/benchmarks/benchmark_program.hpp>
#include <cairn/tracing/trace_diagnosis.hpp>
#include <cairn/tracing/trace_directory.hpp>
#include <cairn/tracing/trace_messages.hpp>
#include <cairn/tracing/trace_writer.hpp>

namespace cairn {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

constexpr int kRanks = 128;
constexpr int kSaves = 600;
constexpr int kMessages = 240;  // that each rank sends, and receives, in one save

double seconds_since(SteadyClock::time_point start) { return std::chrono::duration<double>(SteadyClock::now() - start).count(); }

double peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

// Writes the events of one rank in one save. All ranks have equally many, so that the id of a
// message's sending is known on the rank that handles it.
class RankTrace {
 public:
  RankTrace(const std::string& directory, int rank) : rank_(rank) {
    const TraceHeader header = trace_header(std::string(32, 'a'), rank, kRanks, TraceSource::kStream);
    file_.open(directory + "/" + trace_file_name(header), std::ios::binary);
    start_ = header.wall;
    monotonic_ = header.monotonic;
    encoder_.header(header, bytes_);
  }

  void add_save(int save) {
    save_ = save;
    now_ = std::chrono::seconds(save);
    ObservedEvent call = event(EventKind::kCall, Operation::kSave, Actor::kRuntime);
    call.number = static_cast<std::uint64_t>(save);
    const std::string checkpoint_id = "run/step_" + std::to_string(100 * save);
    call.text = checkpoint_id;
    add(call);
    add(event(EventKind::kState, RankState::kJoining, Actor::kSupervisor));
    if (rank_ == 0)
      add(event(EventKind::kState, CoordinatorState::kMoving, Actor::kCoordinator));
    else
      add(event(EventKind::kState, RankState::kMoving, Actor::kSupervisor));
    ObservedEvent hook = event(EventKind::kBegan, {}, Actor::kStorage);
    hook.name = "write_data";
    hook.phase = Phase::kWrite;
    hook.bytes = 1u << 30;
    add(hook);
    for (int message = 0; message < kMessages; ++message) {
      const int distance = 1 + message % (kRanks - 1);
      ObservedEvent sent = event(EventKind::kSent, MessageKind::kProgress, Actor::kSupervisor);
      sent.peer = (rank_ + distance) % kRanks;
      const std::uint64_t id = add(sent);
      ObservedEvent handled = event(EventKind::kHandled, MessageKind::kProgress, Actor::kSupervisor);
      handled.peer = (rank_ + kRanks - distance) % kRanks;
      handled.cause = id;
      handled.queued = std::chrono::microseconds(20);
      add(handled);
    }
    hook.kind = EventKind::kOperation;
    hook.duration = now_ - std::chrono::seconds(save);
    add(hook);
    add(event(EventKind::kOutcome, Committed::kYes, Actor::kSupervisor));
    file_.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    bytes_.clear();
  }

 private:
  ObservedEvent event(EventKind kind, const What& what, Actor actor) const {
    ObservedEvent event;
    event.kind = kind;
    event.what = what;
    event.actor = actor;
    event.rank = rank_;
    event.checkpointer = 0x1234;
    event.call = static_cast<std::uint64_t>(save_);
    if (kind != EventKind::kCall) event.attempt = event.call;
    return event;
  }

  std::uint64_t add(ObservedEvent& event) {
    event.id = ++id_;
    now_ += std::chrono::milliseconds(1);
    event.time = monotonic_ + now_;
    event.wall_time = start_ + now_;
    encoder_.event(event, bytes_);
    return event.id;
  }
  std::uint64_t add(ObservedEvent&& event) { return add(event); }

  const int rank_;
  std::ofstream file_;
  TraceEncoder encoder_;
  Bytes bytes_;
  WallTime start_;
  MonotonicTime monotonic_;
  Duration now_{0};
  std::uint64_t id_ = 0;
  int save_ = 0;
};

// Removes its directory.
struct Place {
  explicit Place(std::string name) : path((fs::temp_directory_path() / std::move(name)).string()) { fs::create_directory(path); }
  ~Place() { fs::remove_all(path); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  const std::string path;
};

void run(bool quick) {
  const int saves = quick ? kSaves / 8 : kSaves;
  const Place place("cairn_trace_benchmark." + std::to_string(::getpid()));
  for (int rank = 0; rank < kRanks; ++rank) {
    RankTrace trace(place.path, rank);
    for (int save = 1; save <= saves; ++save) trace.add_save(save);
  }

  auto start = SteadyClock::now();
  std::vector<char> buffer(1u << 20);
  double bytes = 0;
  for (const auto& entry : fs::directory_iterator(place.path)) {
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0)
      bytes += static_cast<double>(file.gcount());
  }
  const double reading = seconds_since(start);

  start = SteadyClock::now();
  const TraceDirectory directory(place.path);
  const Trace trace = directory.read(*directory.most_interesting());
  const std::vector<TracedMessage> messages = match_messages(trace);
  const TraceClocks clocks(trace, messages);
  const Diagnosis diagnosis = diagnose(trace, messages, clocks);
  const double seconds = seconds_since(start);
  if (directory.attempts().size() != static_cast<std::size_t>(saves) || diagnosis.end != TracedEnd::kSucceeded)
    throw std::runtime_error("the traces were not understood");

  const double gibibytes = bytes / (1u << 30);
  benchmarks::print("trace_summary_of_128_ranks_per_gib", seconds / gibibytes, "s", reading / gibibytes, "at most 2.5 s",
                    seconds / gibibytes <= 2.5);
  benchmarks::print("trace_summary_of_128_ranks_memory", peak_memory_bytes() / (1u << 20), "MiB", bytes / (1u << 20),
                    "at most 128 MiB", peak_memory_bytes() <= 128.0 * (1u << 20));
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::benchmarks::run_benchmark(argc, argv, cairn::run); }
